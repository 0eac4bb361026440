// The modes over time: a strip for each contact, or for each mover whose mode is one word.

/**
 * Strips below each other, in `root`; a click or a drag on them calls `seek` with the time.
 * Contact modes have their colours of `modeColors`, other words those of `otherColors` in turn.
 */
function Timeline(movers, start, end, seek, modeColors, otherColors) {
  const strips = movers.flatMap(stripsOf);
  const words = [...new Set(strips.flatMap(({ spans }) => spans.map(({ word }) => word)))];
  const others = words.filter((word) => !(word in modeColors));
  const tones = new Map(words.map((word) => [
    word,
    modeColors[word] ?? otherColors[others.indexOf(word) % otherColors.length],
  ]));
  const row = strips.length > 8 ? 12 : 15; // pixels
  const canvas = element("canvas", { "aria-label": "modes over time" });
  const pen = canvas.getContext("2d");
  const legend = element("div", { class: "bar" });
  for (const [word, tone] of tones) legend.append(element("span", {}, swatch(tone, "area"), word));
  this.root = element("div", { class: "timeline" }, canvas, legend);
  let left = 0; // pixels of the names before the strips
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    go(event);
  });
  canvas.addEventListener("pointermove", (event) => event.buttons && go(event));

  /** Draw the strips, with a mark at time t. */
  this.draw = (t) => {
    const [width, height] = [canvas.clientWidth || 800, row * strips.length];
    fit(canvas, pen, width, height);
    pen.font = `${row - 3}px system-ui, Arial, sans-serif`;
    pen.textBaseline = "middle";
    left = Math.min(0.4 * width, 8 + Math.max(...strips.map(({ name }) => pen.measureText(name).width)));
    const x = (time) => left + ((time - start) / (end - start || 1)) * (width - left);
    strips.forEach(({ name, spans }, k) => {
      pen.fillStyle = "#444444";
      pen.fillText(name, 0, (k + 0.5) * row, left - 8);
      for (const span of spans) {
        pen.fillStyle = tones.get(span.word);
        pen.fillRect(x(span.start), k * row + 1, x(span.end) - x(span.start), row - 2);
      }
    });
    pen.fillStyle = "#000000";
    pen.fillRect(Math.min(x(t), width - 1) - 1, 0, 2, height);
  };

  function stripsOf({ label, modes, contacts, stepwise }) {
    const count = modes[0].words.length;
    // An estimate has no contacts of its own, but the modes of the robot that it is of.
    const known = stepwise ? movers.map((m) => m.contacts) : [contacts];
    const names = known.find((each) => each.length === count);
    return Array.from({ length: count }, (_, k) => {
      const part = names ? names[k] : count > 1 ? `part ${k + 1}` : "";
      const name = !part ? label : movers.length > 1 ? `${label}: ${part}` : part;
      return { name, spans: merged(modes, k) };
    });
  }

  /** The spans of word k, those that follow each other with the same word as one. */
  function merged(modes, k) {
    const spans = [];
    for (const { start: from, end: to, words: all } of modes) {
      const last = spans[spans.length - 1];
      if (last && last.word === all[k]) last.end = to;
      else spans.push({ start: from, end: to, word: all[k] });
    }
    return spans;
  }

  function go(event) {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    const part = (x - left) / (canvas.clientWidth - left);
    seek(start + Math.min(Math.max(part, 0), 1) * (end - start));
  }
}
