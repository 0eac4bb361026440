"""Systems that go on where events accumulate or fields push onto a guard from both sides."""
