// What the drawings share: arrays of the page's data, elements, round numbers for ticks.

/** The numbers of {shape, float32}: a flat Float32Array with its shape. */
function unpack(data) {
  return { shape: data.shape, values: new Float32Array(decode(data.float32)) };
}

/** The bytes of a text in base64. */
function decode(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
}

/** Give a canvas so many pixels of the page, and its pen their units, whatever the screen has. */
function fit(canvas, pen, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
  canvas.style.height = `${height}px`;
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
}

/** A new element with attributes and children; what begins with "on" is a listener. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** A new element of a drawing in SVG, as `element` makes one of the page. */
function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Children that are strings become text, whatever they hold: names may come from anybody's file. */
function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A patch of a colour, before its name. */
function swatch(color, kind = "line") {
  const patch = element("span", { class: `swatch ${kind}` });
  patch.style.background = color;
  return patch;
}

/** Ways to all events, [time, text] each: a button for each of few, one list of many. */
function jumps(events, name, show) {
  if (events.length <= 8) {
    return events.map(([time, text, more]) =>
      element("button", { type: "button", title: more ?? name, onclick: () => show(time) }, text),
    );
  }
  const list = element("select", { class: "events", "aria-label": name });
  list.append(element("option", { value: "" }, `${name} (${events.length})`));
  for (const [time, text, more] of events) {
    list.append(element("option", { value: time }, more ? `${text}: ${more}` : text));
  }
  list.addEventListener("change", () => {
    if (list.value) show(+list.value);
    list.value = "";
  });
  return [list];
}

/** Round numbers in [low, high], about `count` of them. */
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return found.map((value) => ({ value, text: number(value, digits) }));
}

/** Powers of ten in [low, high], thinned to about `count`. */
function decades(low, high, count) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first) / count));
  const found = [];
  for (let k = first; k <= last; k += step) found.push({ value: 10 ** k, text: power(k) });
  return found.length > 1 ? found : ticks(low, high, count);
}

function power(k) {
  if (k >= -2 && k <= 3) return String(+(10 ** k).toPrecision(3));
  const raised = [...String(k)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"[c === "-" ? 0 : +c + 1]).join("");
  return `10${raised}`;
}

function number(value, digits) {
  if (digits > 8 || Math.abs(value) >= 1e6) return value.toPrecision(6).replace(/\.?0+(e|$)/, "$1");
  return value.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1").replace("-", "−");
}
