"""First-order maps through events: saltation, B-derivatives, and the flow between them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
