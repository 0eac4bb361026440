// The motion: plays in real time or slower, slower still around events, with forces as arrows.

const SPEEDS = [["real time", 1], ["1/2", 0.5], ["1/4", 0.25], ["1/10", 0.1], ["1/50", 0.02], ["1/200", 0.005]];
const SLOWEST = 0.04; // of the chosen speed, at an event
const FORCE = "#222222";
const IMPULSE = "#cc79a7";

const stage = document.getElementById("motion");
if (stage) {
  const data = JSON.parse(document.querySelector("script.motion").textContent);
  for (const scene of data.scenes) new Player(stage, scene);
}

function Player(stage, scene) {
  const dimensions = scene.axes.length;
  const movers = scene.movers.map(readMover);
  const fixed = scene.fixed.map(unpack);
  const start = Math.min(...movers.map((m) => m.times[0]));
  const end = Math.max(...movers.map((m) => m.times[m.times.length - 1]));
  const near = Math.min(0.05, 0.05 * (end - start));
  const events = [...new Set(movers.flatMap((m) => m.events.map((event) => event[0])))].sort((a, b) => a - b);
  const limits = boundingBox();
  const largest = { force: largestForce(), impulse: largestImpulse() };
  const view = { turn: -0.6, tilt: 0.35, zoom: 1 };
  let [t, playing, previous] = [start, false, 0];

  const canvas = element("canvas", { "aria-label": `${scene.title}, moving` });
  const pen = canvas.getContext("2d");
  const play = element("button", { type: "button", onclick: toggle }, "play");
  const speed = element("select", { "aria-label": "speed" });
  for (const [name, value] of SPEEDS) speed.append(element("option", { value }, name));
  speed.value = "0.25";
  const slow = checkbox(true);
  const arrows = checkbox(true);
  const slider = element("input", { type: "range", min: 0, max: 10000, value: 0, "aria-label": "time" });
  slider.addEventListener("input", () => seek(start + (slider.value / 10000) * (end - start)));
  const clock = element("output");
  const modes = element("div", { class: "modes" });
  const root = element(
    "div",
    { class: "scene" },
    element("h3", {}, scene.title),
    element("div", { class: "bar" }, play, slider, clock),
    canvas,
    legend(),
    modes,
    element("div", { class: "bar" }, "speed", speed, label(slow, "slower around events"),
      ...(largest.force || largest.impulse ? [label(arrows, "forces")] : []), ...eventButtons()),
  );
  stage.append(root);
  arrows.addEventListener("change", draw);
  if (dimensions === 3) canvas.addEventListener("pointermove", turn);
  new ResizeObserver(draw).observe(canvas);
  const asked = /t=([-\d.e]+)/.exec(location.hash);
  seek(asked ? Math.min(Math.max(+asked[1], start), end) : start);

  function readMover(mover) {
    const read = { ...mover, times: unpack(mover.times).values, points: unpack(mover.points) };
    if (mover.places) {
      read.places = unpack(mover.places);
      read.forces = unpack(mover.forces);
    }
    read.impulses = mover.impulses ?? [];
    return read;
  }

  function checkbox(checked) {
    const box = element("input", { type: "checkbox" });
    box.checked = checked;
    return box;
  }

  function label(box, text) {
    return element("label", {}, box, ` ${text}`);
  }

  function legend() {
    const bar = element("div", { class: "bar" });
    const items = movers.map((m) => [m.color, m.label]);
    if (largest.force) items.push([FORCE, `contact force (longest: ${largest.force.toPrecision(3)} N)`]);
    if (largest.impulse) items.push([IMPULSE, `impulse (longest: ${largest.impulse.toPrecision(3)} N s)`]);
    for (const [color, name] of items) {
      bar.append(element("span", {}, swatch(color), name));
    }
    if (dimensions === 3) bar.append(element("span", { class: "hint" }, "drag to turn"));
    return bar;
  }

  function eventButtons() {
    const described = events.map((time) => {
      const texts = movers.flatMap((m) => m.events.filter((event) => event[0] === time).map((event) => event[1]));
      return [time, `event ${time.toFixed(4)} s`, [...new Set(texts)].join("\n")];
    });
    return jumps(described, "go to an event", (time) => seek(Math.max(start, time - 0.2 * near)));
  }

  function boundingBox() {
    const low = Array(dimensions).fill(Infinity);
    const high = Array(dimensions).fill(-Infinity);
    for (const { values } of [...movers.map((m) => m.points), ...fixed]) {
      for (let i = 0; i < values.length; i++) {
        const axis = i % dimensions;
        low[axis] = Math.min(low[axis], values[i]);
        high[axis] = Math.max(high[axis], values[i]);
      }
    }
    return { low, high };
  }

  /** The size that 98 of 100 forces stay below: single peaks may be cut. */
  function largestForce() {
    const sizes = [];
    for (const { forces } of movers) {
      if (!forces) continue;
      for (let i = 0; i < forces.values.length; i += dimensions) {
        const size = Math.hypot(...forces.values.subarray(i, i + dimensions));
        if (size > 0) sizes.push(size);
      }
    }
    sizes.sort((a, b) => a - b);
    return sizes.length ? sizes[Math.floor(0.98 * (sizes.length - 1))] : 0;
  }

  function largestImpulse() {
    return Math.max(0, ...movers.flatMap((m) => m.impulses.map((i) => i.size)));
  }

  function toggle() {
    if (!playing && t >= end) t = start;
    playing = !playing;
    play.textContent = playing ? "pause" : "play";
    previous = performance.now();
    if (playing) requestAnimationFrame(step);
  }

  function step(now) {
    if (!playing) return;
    const passed = Math.min(now - previous, 100) / 1000;
    previous = now;
    seek(Math.min(t + passed * rate(), end));
    if (t >= end) toggle();
    else requestAnimationFrame(step);
  }

  /** Speed now: the chosen one, and less near an event. */
  function rate() {
    if (!slow.checked || !events.length) return +speed.value;
    const distance = Math.min(...events.map((time) => Math.abs(t - time)));
    return +speed.value * Math.max(SLOWEST, Math.min(1, distance / near));
  }

  function seek(time) {
    t = time;
    slider.value = Math.round((10000 * (t - start)) / (end - start));
    clock.textContent = `t = ${t.toFixed(4)} s`;
    root.dataset.time = t;
    modes.textContent = movers.map((m) => `${m.label}: ${modeOf(m)}`).join("   |   ");
    draw();
  }

  function modeOf(mover) {
    const now = mover.modes.find(([from, to]) => t >= from && t < to) ?? mover.modes[mover.modes.length - 1];
    return now[2];
  }

  /** The frame before t and how far it is to the next. */
  function frameOf({ times }) {
    let [low, high] = [0, times.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (times[middle] <= t) low = middle;
      else high = middle;
    }
    const gap = times[high] - times[low];
    return [low, gap > 0 ? Math.min(Math.max((t - times[low]) / gap, 0), 1) : 1];
  }

  /** Entries of an array (n, k, d) between two frames: k points. */
  function between({ shape, values }, [frame, part]) {
    const [n, k] = shape;
    const size = k * dimensions;
    const next = Math.min(frame + 1, n - 1);
    const points = [];
    for (let i = 0; i < k; i++) {
      const point = [];
      for (let d = 0; d < dimensions; d++) {
        const [a, b] = [values[frame * size + i * dimensions + d], values[next * size + i * dimensions + d]];
        point.push(a + part * (b - a));
      }
      points.push(point);
    }
    return points;
  }

  function draw() {
    const width = canvas.clientWidth || 800;
    const height = Math.round(Math.min(520, Math.max(260, Math.min(0.55 * width, 0.6 * window.innerHeight))));
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const project = dimensions === 2 ? inPlane(width, height) : inSpace(width, height);
    for (const { shape, values } of fixed) {
      const line = [];
      for (let i = 0; i < shape[0]; i++) line.push([...values.subarray(i * dimensions, (i + 1) * dimensions)]);
      polyline(line.map(project), "#999999", 1.5);
    }
    for (const mover of movers) drawMover(mover, project, height);
  }

  function drawMover(mover, project, height) {
    const frame = frameOf(mover);
    const points = between(mover.points, frame).map(project);
    let first = 0;
    for (const count of mover.lines) {
      polyline(points.slice(first, first + count), mover.color, 3);
      first += count;
    }
    if (!arrows.checked) return;
    if (mover.places) {
      const [places, forces] = [between(mover.places, frame), between(mover.forces, frame)];
      places.forEach((place, i) => arrow(project, place, forces[i], largest.force, FORCE, height));
    }
    for (const impulse of mover.impulses) {
      if (t < impulse.time || t > impulse.time + 0.3 * near) continue;
      arrow(project, impulse.place, impulse.value, largest.impulse, IMPULSE, height);
    }
  }

  function polyline(points, color, width) {
    pen.strokeStyle = color;
    pen.lineWidth = width;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
  }

  /** A vector at a point; one of the largest size is as long as a quarter of the height. */
  function arrow(project, place, vector, scale, color, height) {
    const size = Math.hypot(...vector);
    if (!(scale > 0) || size < 1e-3 * scale) return;
    const [from, unit] = [project(place), project(place.map((p, d) => p + (1e-3 * vector[d]) / size))];
    const along = [unit[0] - from[0], unit[1] - from[1]];
    const seen = Math.hypot(...along);
    if (seen === 0) return;
    const shortened = dimensions === 2 ? 1 : seen / (1e-3 * view.scale);
    const length = 0.25 * height * Math.min(size / scale, 1.3) * shortened;
    const [a, b] = [along[0] / seen, along[1] / seen];
    const tip = [from[0] + a * length, from[1] + b * length];
    polyline([from, tip], color, 2.5);
    const head = Math.min(9, 0.4 * length + 3);
    pen.fillStyle = color;
    pen.beginPath();
    pen.moveTo(tip[0] + a * head * 0.6, tip[1] + b * head * 0.6);
    pen.lineTo(tip[0] - a * head * 0.6 - b * head * 0.5, tip[1] - b * head * 0.6 + a * head * 0.5);
    pen.lineTo(tip[0] - a * head * 0.6 + b * head * 0.5, tip[1] - b * head * 0.6 - a * head * 0.5);
    pen.fill();
  }

  /** A plane to scale, with its axes. */
  function inPlane(width, height) {
    const margin = { left: 55, right: 15, top: 15, bottom: 38 };
    const [w, h] = [width - margin.left - margin.right, height - margin.top - margin.bottom];
    const size = limits.high.map((high, d) => Math.max(high - limits.low[d], 1e-6));
    const scale = Math.min(w / (1.1 * size[0]), h / (1.1 * size[1]));
    const middle = limits.high.map((high, d) => 0.5 * (high + limits.low[d]));
    const centre = [margin.left + 0.5 * w, margin.top + 0.5 * h];
    const project = ([x, y]) => [centre[0] + scale * (x - middle[0]), centre[1] - scale * (y - middle[1])];
    pen.font = "11px system-ui, Arial, sans-serif";
    pen.fillStyle = "#444444";
    const span = (d, pixels) => [middle[d] - (0.5 * pixels) / scale, middle[d] + (0.5 * pixels) / scale];
    pen.textAlign = "center";
    for (const { value, text } of ticks(...span(0, w), w / 90)) {
      const [x] = project([value, 0]);
      polyline([[x, margin.top], [x, margin.top + h]], "#eeeeee", 1);
      pen.fillText(text, x, margin.top + h + 14);
    }
    pen.fillText(`${scene.axes[0]} [m]`, centre[0], height - 6);
    pen.textAlign = "right";
    for (const { value, text } of ticks(...span(1, h), h / 60)) {
      const [, y] = project([0, value]);
      polyline([[margin.left, y], [margin.left + w, y]], "#eeeeee", 1);
      pen.fillText(text, margin.left - 5, y + 4);
    }
    pen.save();
    pen.translate(14, centre[1]);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(`${scene.axes[1]} [m]`, 0, 0);
    pen.restore();
    return project;
  }

  /** Space seen from afar, z up, with the axes of the world. */
  function inSpace(width, height) {
    const middle = limits.high.map((high, d) => 0.5 * (high + limits.low[d]));
    const radius = 0.5 * Math.hypot(...limits.high.map((high, d) => high - limits.low[d]));
    view.scale = (0.5 * Math.min(width, height)) / (radius || 1);
    const [ct, st, ce, se] = [Math.cos(view.turn), Math.sin(view.turn), Math.cos(view.tilt), Math.sin(view.tilt)];
    const project = (point) => {
      const [x, y, z] = point.map((value, d) => value - middle[d]);
      const [across, away] = [ct * x - st * y, st * x + ct * y];
      return [0.5 * width + view.scale * across, 0.5 * height - view.scale * (ce * z + se * away)];
    };
    const length = 0.25 * radius;
    const origin = limits.low;
    pen.font = "11px system-ui, Arial, sans-serif";
    pen.fillStyle = "#444444";
    pen.textAlign = "center";
    scene.axes.forEach((axis, d) => {
      const tip = project(origin.map((value, e) => value + (e === d ? length : 0)));
      polyline([project(origin), tip], "#444444", 1);
      pen.fillText(`${axis} (${length.toPrecision(2)} m)`, tip[0], tip[1] - 4);
    });
    return project;
  }

  function turn(event) {
    if (!event.buttons) return;
    view.turn += 0.008 * event.movementX;
    view.tilt = Math.min(1.5, Math.max(-1.5, view.tilt + 0.008 * event.movementY));
    draw();
  }
}
