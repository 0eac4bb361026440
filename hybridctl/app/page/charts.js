// Charts of series over a common axis: drag over a span to zoom all panels of a figure into it.

const DASHES = { "--": "6 4", ":": "1.5 3", "-.": "6 3 1.5 3" };
const MARGIN = { left: 60, right: 10, top: 16, bottom: 34 };
const POWERS = new Map([["^2", "²"], ["^3", "³"], ["^{-1}", "⁻¹"]]);

for (const holder of document.querySelectorAll(".chart")) {
  new Chart(holder, JSON.parse(holder.querySelector("script").textContent));
}

/** The pattern of a line's style, whatever its markers are. */
function dashesOf(style) {
  return DASHES[Object.keys(DASHES).find((pattern) => style.includes(pattern))] ?? "";
}

/** Text of a label whose powers are set between dollar signs. */
function plainLabel(text) {
  return text.replace(/\$([^$]*)\$/g, (_, inside) => POWERS.get(inside) ?? inside.replace(/\\/g, ""));
}

function Chart(holder, figure) {
  const columns = Math.max(...figure.rows.map((row) => row.length));
  const panels = [];
  const across = figure.xlog ? Math.log10 : (x) => x;
  const back = figure.xlog ? (x) => 10 ** x : (x) => x;
  const whole = wholeSpan();
  let span = whole;

  const grid = element("div", { class: "panels" });
  grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  figure.rows.forEach((row, r) => {
    row.forEach((panel, c) => {
      const last = !figure.rows.slice(r + 1).some((other) => other.length > c);
      panels.push(new Panel(grid, panel, last, columns));
    });
    for (let c = row.length; c < columns; c++) grid.append(element("div"));
  });
  holder.append(element("h3", {}, figure.title), toolbar(), grid);
  render();
  new ResizeObserver(render).observe(grid);

  function wholeSpan() {
    if (figure.span) return figure.span;
    let [low, high] = [Infinity, -Infinity];
    for (const line of figure.rows.flat().flatMap((panel) => panel.lines)) {
      for (const x of unpack(line.x).values) {
        if (x < low) low = x;
        if (x > high) high = x;
      }
    }
    const pad = 0.02 * (across(high) - across(low) || 1);
    return [back(across(low) - pad), back(across(high) + pad)];
  }

  function toolbar() {
    const bar = element("div", { class: "bar" });
    const reset = element("button", { type: "button", onclick: () => zoom(whole) }, "all");
    const near = 0.015 * (whole[1] - whole[0]);
    const texts = borders().map((t) => [t, `${t.toFixed(4)} s`]);
    const ways = jumps(texts, "zoom into an event", (t) => zoom([t - near, t + near]));
    bar.append(element("div", { class: "bar jumps" }, reset, ...ways));
    const named = new Map(figure.bands.filter((band) => band.label).map((band) => [band.label, band.color]));
    for (const [label, color] of named) bar.append(element("span", {}, swatch(color, "area"), label));
    bar.append(element("span", { class: "hint" }, "drag over a span to zoom, double-click for all"));
    return bar;
  }

  /** The events: where bands meet, and vertical lines. */
  function borders() {
    const found = figure.bands.slice(1).map((band) => band.start);
    for (const { x } of figure.rows[0][0].lines) {
      const { values } = unpack(x);
      if (values.length === 2 && values[0] === values[1]) found.push(values[0]);
    }
    const inside = found.filter((t) => t > whole[0] && t < whole[1]).sort((a, b) => a - b);
    return [...new Set(inside)];
  }

  function zoom(next) {
    if (!(across(next[1]) - across(next[0]) > 1e-9 * Math.max(1, Math.abs(next[0])))) return;
    span = next;
    render();
  }

  function render() {
    for (const panel of panels) panel.draw(span);
  }

  function Panel(grid, spec, last, columns) {
    const lines = spec.lines.map((line) => ({
      ...line,
      x: unpack(line.x).values,
      y: unpack(line.y).values,
      shown: true,
    }));
    const names = plainLabel(spec.ylabel).split("\n");
    const left = MARGIN.left + 12 * (names.length - 1);
    const drawing = element("div");
    const legend = element("div", { class: "legend" });
    grid.append(element("div", { class: "panel" }, drawing, legend));
    for (const line of lines.filter((line) => line.label)) legend.append(entry(line));
    const clip = `clip${document.querySelectorAll("clipPath").length}-${Math.random().toString(36).slice(2)}`;

    function entry(line) {
      const dashed = { stroke: line.color, "stroke-width": 2, "stroke-dasharray": dashesOf(line.style) };
      const sample = shape("line", { x1: 1, y1: 4, x2: 25, y2: 4, ...dashed });
      return element("span", {}, shape("svg", { viewBox: "0 0 26 8" }, sample), plainLabel(line.label));
    }

    this.draw = ([low, high]) => {
      const width = Math.max(drawing.clientWidth, 160);
      const height = columns === 1 ? 230 : 180;
      const box = { x0: left, x1: width - MARGIN.right, y0: height - MARGIN.bottom, y1: MARGIN.top };
      const [bottom, top] = sharedOrdinates(low, high);
      const scale = spec.log ? Math.log10 : (v) => v;
      const [s0, s1] = [scale(bottom), scale(top)];
      const [a0, a1] = [across(low), across(high)];
      const px = (x) => box.x0 + ((across(x) - a0) / (a1 - a0)) * (box.x1 - box.x0);
      const py = (y) => box.y0 + ((scale(y) - s0) / (s1 - s0)) * (box.y1 - box.y0);
      const inside = { x: box.x0, y: box.y1, width: box.x1 - box.x0, height: box.y0 - box.y1 };
      const selection = { ...inside, width: 0, fill: "#0072b2", "fill-opacity": 0.15 };
      const curves = shape("g", { "clip-path": `url(#${clip})` });
      for (const part of lines.flatMap((line) => curve(line, px, py))) curves.append(part);
      const picture = shape(
        "svg",
        { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": plainLabel(spec.ylabel) },
        shape("defs", {}, shape("clipPath", { id: clip }, shape("rect", inside))),
        ...bands(low, high, px, box),
        ...axes(low, high, bottom, top, px, py, box),
        curves,
        ...marks(low, high, px, box),
        ...peak(low, high, top, px, box),
        shape("rect", { class: "frame", ...inside, fill: "none", stroke: "#444" }),
        shape("rect", { class: "selection", ...selection }),
      );
      drawing.replaceChildren(picture);
      listen(picture, low, high, box);
    };

    this.share = spec.share;
    this.ordinates = ordinates;

    /** Ends of the ordinate: those of all panels that share it. */
    function sharedOrdinates(low, high) {
      const group = spec.share ? panels.filter((other) => other.share === spec.share) : [];
      if (!group.length) return ordinates(low, high);
      const ends = group.map((other) => other.ordinates(low, high));
      return [Math.min(...ends.map(([least]) => least)), Math.max(...ends.map(([, most]) => most))];
    }

    /** What is marked at the upper edge, with the text of those that have room. */
    function marks(low, high, px, box) {
      let last = -Infinity;
      return (spec.marks ?? []).filter(({ time }) => time >= low && time <= high).flatMap(({ time, text }) => {
        const x = px(time);
        const tip = shape("path", { d: `M${x - 4} ${box.y1} h8 l-4 7 z`, fill: "#000" });
        if (x - last < 7 * text.length) return [tip];
        last = x;
        return [tip, shape("text", { x: x + 6, y: box.y1 + 10 }, text)];
      });
    }

    /** Where a curve is cut, how high it goes. */
    function peak(low, high, top, px, box) {
      if (!spec.most) return [];
      let [x0, y0] = [0, top];
      for (const { x, y } of lines) {
        for (let i = 0; i < x.length; i++) {
          if (x[i] >= low && x[i] <= high && y[i] > y0) [x0, y0] = [x[i], y[i]];
        }
      }
      if (y0 <= top) return [];
      return [shape("text", { x: px(x0) + 6, y: box.y1 + 22 }, `to ${+y0.toPrecision(3)}`)];
    }

    /** Least and largest value of what is seen, with some space. */
    function ordinates(low, high) {
      let [least, largest] = spec.zero ? [0, 0] : [Infinity, -Infinity];
      for (const { x, y } of lines) {
        for (let i = 0; i < x.length; i++) {
          const seen =
            (x[i] >= low && x[i] <= high) ||
            (i + 1 < x.length && x[i] < low && x[i + 1] > high) ||
            (i > 0 && x[i - 1] < low && x[i] > high);
          if (!seen || !Number.isFinite(y[i]) || (spec.log && y[i] <= 0)) continue;
          least = Math.min(least, y[i]);
          largest = Math.max(largest, y[i]);
        }
      }
      if (!(least <= largest)) return spec.log ? [0.1, 10] : [-1, 1];
      if (spec.log) return least === largest ? [least / 3, largest * 3] : [least / 1.5, largest * 1.5];
      if (largest - least < spec.least) {
        const middle = (least + largest) / 2;
        return [middle - spec.least / 2, middle + spec.least / 2];
      }
      if (spec.most && high - low > 0.5 * (whole[1] - whole[0])) largest = Math.min(largest, spec.most);
      const pad = 0.06 * (largest - least) || 0.5 * Math.abs(largest) || 1;
      return [least - pad, largest + pad];
    }

    function bands(low, high, px, box) {
      return figure.bands
        .filter((band) => band.end >= low && band.start <= high)
        .flatMap((band) => {
          const [a, b] = [px(Math.max(band.start, low)), px(Math.min(band.end, high))];
          const area = { x: a, y: box.y1, width: b - a, height: box.y0 - box.y1, fill: band.color };
          const named = band.label && b - a > 6 * band.label.length;
          const middle = { x: (a + b) / 2, y: 11, "text-anchor": "middle" };
          return [shape("rect", area), ...(named ? [shape("text", middle, band.label)] : [])];
        });
    }

    function axes(low, high, bottom, top, px, py, box) {
      const most = Math.max(2, (box.x1 - box.x0) / 80);
      const horizontal = figure.xlog ? decades(low, high, most) : ticks(low, high, most);
      const vertical = spec.log ? decades(bottom, top, 5) : ticks(bottom, top, 5);
      const faint = { stroke: "#000", "stroke-opacity": 0.1 };
      const parts = [];
      for (const { value, text } of horizontal) {
        const x = px(value);
        const place = { class: "tick", x, y: box.y0 + 14, "text-anchor": "middle" };
        parts.push(shape("line", { x1: x, x2: x, y1: box.y0, y2: box.y1, ...faint }), shape("text", place, text));
      }
      for (const { value, text } of vertical) {
        const y = py(value);
        const tone = spec.zero && value === 0 ? { ...faint, "stroke-opacity": 0.8 } : faint;
        const place = { class: "tick", x: box.x0 - 5, y: y + 4, "text-anchor": "end" };
        parts.push(shape("line", { x1: box.x0, x2: box.x1, y1: y, y2: y, ...tone }), shape("text", place, text));
      }
      const beside = `translate(11 ${(box.y0 + box.y1) / 2}) rotate(-90)`;
      const label = { class: "label", "text-anchor": "middle" };
      names.forEach((text, k) => {
        parts.push(shape("text", { ...label, transform: `${beside} translate(0 ${12 * k})` }, text));
      });
      const below = { x: (box.x0 + box.x1) / 2, y: box.y0 + 29 };
      if (last) parts.push(shape("text", { ...label, ...below }, plainLabel(figure.xlabel)));
      return parts;
    }

    function curve(line, px, py) {
      let [path, pen] = ["", false];
      const dots = [];
      const marked = /[.os^vDx]/.test(line.style.replace("-.", ""));
      for (let i = 0; i < line.x.length; i++) {
        const drawn = Number.isFinite(line.y[i]) && !(spec.log && line.y[i] <= 0);
        if (drawn) {
          const [a, b] = [px(line.x[i]).toFixed(2), py(line.y[i]).toFixed(2)];
          path += `${pen ? "L" : "M"}${a} ${b}`;
          if (marked) dots.push(shape("circle", { cx: a, cy: b, r: 1.8, fill: line.color }));
        }
        pen = drawn;
      }
      const joined = /-|:/.test(line.style);
      const stroke = shape("path", {
        d: path,
        fill: "none",
        stroke: line.color,
        "stroke-width": line.width,
        "stroke-dasharray": dashesOf(line.style),
        "stroke-linejoin": "round",
      });
      return joined ? [stroke, ...dots] : dots;
    }

    function listen(svg, low, high, box) {
      const selection = svg.querySelector(".selection");
      let from = null;
      const at = (event) => {
        const x = event.clientX - svg.getBoundingClientRect().left;
        return Math.min(Math.max(x, box.x0), box.x1);
      };
      const time = (x) =>
        back(across(low) + ((x - box.x0) / (box.x1 - box.x0)) * (across(high) - across(low)));
      svg.addEventListener("pointerdown", (event) => {
        from = at(event);
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", (event) => {
        if (from === null) return;
        selection.setAttribute("x", Math.min(from, at(event)));
        selection.setAttribute("width", Math.abs(at(event) - from));
      });
      svg.addEventListener("pointerup", (event) => {
        const [a, b] = [Math.min(from, at(event)), Math.max(from, at(event))];
        from = null;
        selection.setAttribute("width", 0);
        if (b - a > 4) zoom([time(a), time(b)]);
      });
      svg.addEventListener("dblclick", () => zoom(whole));
    }
  }
}
