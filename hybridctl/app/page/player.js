// The motion: plays in real time or slower, slower still around events, with forces as arrows.
// Scenes in a plane are lines on a canvas; those in space have their shapes drawn by `Solids`.

const SPEEDS = [["real time", 1], ["1/2", 0.5], ["1/4", 0.25], ["1/10", 0.1], ["1/50", 0.02], ["1/200", 0.005]];
const SLOWEST = 0.04; // of the chosen speed, at an event
const FORCE = "#f0e442"; // with an edge in black, so that it is seen on dark robots and on white
const IMPULSE = "#000000"; // with an edge in white

const stage = document.getElementById("motion");
if (stage) {
  const data = JSON.parse(document.querySelector("script.motion").textContent);
  for (const scene of data.scenes) new Player(stage, scene, data);
}

function Player(stage, scene, { mode_colors, other_colors }) {
  const dimensions = scene.axes.length;
  const movers = scene.movers.map(readMover);
  const fixed = scene.fixed.map(unpack);
  const start = Math.min(...movers.map((m) => m.times[0]));
  const end = Math.max(...movers.map((m) => m.times[m.times.length - 1]));
  const near = Math.min(0.05, 0.05 * (end - start)); // s, how long an event is "around"
  const events = [...new Set(movers.flatMap((m) => m.events.map((event) => event[0])))].sort((a, b) => a - b);
  const limits = boundingBox();
  const largest = { force: largestForce(), impulse: largestImpulse() };
  const view = { turn: -0.6, tilt: 0.35, zoom: 1, shift: [0, 0] }; // rad, rad, factor, pixels
  const solids = dimensions === 3 ? new Solids(scene.meshes, fixed) : null;
  const surfaces = scene.surfaces.map((shape) => ({ ...shape, pose: poseOf(shape.placement) }));
  let [t, playing, previous] = [start, false, 0];

  const canvas = element("canvas", { "aria-label": `${scene.title || "mechanism"}, moving` });
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
  const timeline = new Timeline(movers, start, end, seek, mode_colors ?? {}, other_colors ?? ["#56b4e9"]);
  const root = element(
    "div",
    { class: "scene" },
    ...(scene.title ? [element("h3", {}, scene.title)] : []),
    element("div", { class: "bar" }, play, slider, clock),
    element("div", { class: solids ? "picture space" : "picture" }, ...(solids ? [solids.canvas] : []), canvas),
    legend(),
    timeline.root,
    modes,
    element("div", { class: "bar" }, "speed", speed, label(slow, "slower around events"),
      ...(largest.force || largest.impulse ? [label(arrows, "forces")] : [])),
    element("div", { class: "bar jumps" }, ...eventButtons()),
  );
  stage.append(root);
  arrows.addEventListener("change", draw);
  if (dimensions === 3) listenToMoves();
  new ResizeObserver(draw).observe(canvas);
  window.addEventListener("hashchange", seekAsked);
  seekAsked();

  /** Go to the time in the address, or where there is none, to that of the page. */
  function seekAsked() {
    const asked = /t=([-\d.e]+)/.exec(location.hash)?.[1] ?? stage.dataset.time ?? start;
    seek(Math.min(Math.max(+asked, start), end));
  }

  function readMover(mover) {
    const read = { ...mover, times: unpack(mover.times).values, points: unpack(mover.points) };
    if (mover.places) {
      read.places = unpack(mover.places);
      read.forces = unpack(mover.forces);
    }
    if (mover.poses) read.poses = unpack(mover.poses);
    if (mover.ellipsoids) read.ellipsoids = unpack(mover.ellipsoids);
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
    if (dimensions === 3) {
      const zoom = (factor) => () => {
        view.zoom *= factor;
        draw();
      };
      bar.append(
        element("button", { type: "button", title: "nearer", onclick: zoom(1.25) }, "+"),
        element("button", { type: "button", title: "farther", onclick: zoom(0.8) }, "\u2212"),
        element("span", { class: "hint" }, "drag to turn, shift and drag to move"),
      );
      if (!solids.works) bar.append(element("strong", {}, "no shapes: this browser has no WebGL 2"));
    }
    return bar;
  }

  function eventButtons() {
    const described = events.map((time) => {
      const texts = movers.flatMap((m) => m.events.filter((event) => event[0] === time).map((event) => event[1]));
      return [time, `event ${time.toFixed(4)} s`, [...new Set(texts)].join("\n")];
    });
    return jumps(described, "go to an event", (time) => seek(Math.max(start, time - 0.2 * near)));
  }

  /** Ends of what is shown: in a plane all of it, in space what moves, before endless ground. */
  function boundingBox() {
    const low = Array(dimensions).fill(Infinity);
    const high = Array(dimensions).fill(-Infinity);
    for (const { values } of [...movers.map((m) => m.points), ...(dimensions === 3 ? [] : fixed)]) {
      for (let i = 0; i < values.length; i++) {
        const axis = i % dimensions;
        low[axis] = Math.min(low[axis], values[i]);
        high[axis] = Math.max(high[axis], values[i]);
      }
    }
    return { low, high };
  }

  /**
   * The size that 98 of 100 forces stay below, so that single peaks may be cut; of a robot that
   * lands hard, thrice the median, so that one sees the forces on which it then stands.
   */
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
    const below = (part) => sizes[Math.floor(part * (sizes.length - 1))];
    return sizes.length ? Math.min(below(0.98), 3 * below(0.5)) : 0;
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
    const now = mover.modes.find(({ start, end }) => t >= start && t < end) ?? mover.modes[mover.modes.length - 1];
    return now.text;
  }

  /** The frame before t, and which part of the way to the next is done: none where it jumps there. */
  function frameOf({ times, stepwise }) {
    let [low, high] = [0, times.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (times[middle] <= t) low = middle;
      else high = middle;
    }
    if (stepwise) return [t >= times[high] ? high : low, 0];
    const gap = times[high] - times[low];
    return [low, gap > 0 ? Math.min(Math.max((t - times[low]) / gap, 0), 1) : 1];
  }

  /** Rows of an array (n, k, d) between two of its n frames: k lists of d numbers. */
  function between({ shape, values }, [frame, part]) {
    const [n, k, d] = shape;
    const [first, next] = [frame * k * d, Math.min(frame + 1, n - 1) * k * d];
    const rows = [];
    for (let i = 0; i < k; i++) {
      const row = [];
      for (let j = i * d; j < (i + 1) * d; j++) {
        const [a, b] = [values[first + j], values[next + j]];
        row.push(a + part * (b - a));
      }
      rows.push(row);
    }
    return rows;
  }

  /** Shapes of a mover between two frames, each with its pose in the world. */
  function shapesOf(mover, frame) {
    const shapes = [];
    if (mover.poses) {
      const links = between(mover.poses, frame).map(poseOf);
      for (const shape of mover.shapes) {
        shapes.push({ ...shape, pose: composed(links[shape.link], poseOf(shape.placement)) });
      }
    }
    if (mover.ellipsoids) {
      for (const e of between(mover.ellipsoids, frame)) {
        const pose = { turn: [e.slice(0, 3), e.slice(3, 6), e.slice(6, 9)], place: e.slice(9) };
        shapes.push({ mesh: mover.ball, color: mover.color, opacity: 0.3, pose });
      }
    }
    return shapes;
  }

  function draw() {
    const width = canvas.clientWidth || 800;
    const height = Math.round(Math.min(520, Math.max(260, Math.min(0.55 * width, 0.6 * window.innerHeight))));
    fit(canvas, pen, width, height);
    const project = dimensions === 2 ? inPlane(width, height) : inSpace(width, height);
    if (dimensions === 2) {
      for (const { shape, values } of fixed) {
        const line = [];
        for (let i = 0; i < shape[0]; i++) line.push([...values.subarray(i * dimensions, (i + 1) * dimensions)]);
        polyline(line.map(project), "#999999", 1.5);
      }
    }
    for (const mover of movers) drawMover(mover, project, height);
    timeline.draw(t);
  }

  function drawMover(mover, project, height) {
    const frame = frameOf(mover);
    if (!(mover.poses && solids.works)) {
      const points = between(mover.points, frame).map(project);
      let first = 0;
      for (const count of mover.lines) {
        polyline(points.slice(first, first + count), mover.color, 3);
        first += count;
      }
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
    const metres = (0.25 * height * Math.min(size / scale, 1.3)) / view.scale;
    const [from, tip] = [project(place), project(place.map((p, d) => p + (metres * vector[d]) / size))];
    const length = Math.hypot(tip[0] - from[0], tip[1] - from[1]);
    if (length === 0) return;
    const [a, b] = [(tip[0] - from[0]) / length, (tip[1] - from[1]) / length];
    const head = Math.min(12, 0.4 * length + 4);
    const edge = color === IMPULSE ? "#ffffff" : "#000000";
    const shaft = [tip[0] - a * head * 0.4, tip[1] - b * head * 0.4];
    pen.fillStyle = color;
    polyline([from, shaft], edge, 6);
    pen.beginPath();
    pen.moveTo(tip[0] + a * head * 0.6, tip[1] + b * head * 0.6);
    pen.lineTo(tip[0] - a * head * 0.6 - b * head * 0.5, tip[1] - b * head * 0.6 + a * head * 0.5);
    pen.lineTo(tip[0] - a * head * 0.6 + b * head * 0.5, tip[1] - b * head * 0.6 - a * head * 0.5);
    pen.closePath();
    pen.strokeStyle = edge;
    pen.lineWidth = 3;
    pen.stroke();
    pen.fill();
    polyline([from, shaft], color, 3.5);
  }

  /** A plane to scale, with its axes. */
  function inPlane(width, height) {
    const margin = { left: 55, right: 15, top: 15, bottom: 38 };
    const [w, h] = [width - margin.left - margin.right, height - margin.top - margin.bottom];
    const size = limits.high.map((high, d) => Math.max(high - limits.low[d], 1e-6));
    const scale = Math.min(w / (1.1 * size[0]), h / (1.1 * size[1]));
    view.scale = scale;
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

  /** Space in perspective, z up: shapes, and the axes of the world at the low corner. */
  function inSpace(width, height) {
    const middle = limits.high.map((high, d) => 0.5 * (high + limits.low[d]));
    const radius = 0.5 * Math.hypot(...limits.high.map((high, d) => high - limits.low[d])) || 1;
    const far = 4 * radius; // from the camera to the middle: 28 degrees around what moves
    // Pixels of a metre in the middle; shapes are larger than the lines between their joints.
    view.scale = (0.45 * view.zoom * Math.min(width, height)) / radius;
    const [ct, st, ce, se] = [Math.cos(view.turn), Math.sin(view.turn), Math.cos(view.tilt), Math.sin(view.tilt)];
    const turn = [[ct, -st, 0], [se * st, se * ct, ce], [ce * st, ce * ct, -se]]; // across, up, away
    const project = (point) => {
      const from = point.map((value, d) => value - middle[d]);
      const [across, up, away] = multiply(turn, from);
      const scale = (view.scale * far) / (far + away);
      return [0.5 * width + view.shift[0] + scale * across, 0.5 * height + view.shift[1] - scale * up];
    };
    if (solids.works) {
      const [first, last] = [0.02 * far, far + 10 * radius + 10]; // m, between which shapes are seen
      const focus = 2 * view.scale * far;
      const camera = {
        turn,
        middle,
        far,
        focus: [focus / width, focus / height],
        shift: [(2 * view.shift[0]) / width, (-2 * view.shift[1]) / height],
        depth: [(last + first) / (last - first), (-2 * last * first) / (last - first)],
      };
      const shapes = [...surfaces, ...movers.flatMap((m) => shapesOf(m, frameOf(m)))];
      solids.canvas.style.height = `${height}px`;
      solids.draw(canvas.width, canvas.height, camera, shapes);
    }
    drawAxes(turn, height);
    return project;
  }

  /** The axes of the world in a corner, as long as the given metres are in the middle. */
  function drawAxes(turn, height) {
    const [length, origin] = [40, [60, height - 45]]; // pixels
    pen.font = "11px system-ui, Arial, sans-serif";
    pen.fillStyle = "#444444";
    pen.textAlign = "center";
    scene.axes.forEach((axis, d) => {
      const [across, up] = [turn[0][d], turn[1][d]];
      polyline([origin, [origin[0] + length * across, origin[1] - length * up]], "#444444", 1);
      pen.fillText(axis, origin[0] + (length + 9) * across, origin[1] - (length + 9) * up + 4);
    });
    pen.fillText(`${(length / view.scale).toPrecision(2)} m each`, origin[0], height - 6);
  }

  /** Drags turn the picture, or move it with the shift key or another button; pinches zoom it. */
  function listenToMoves() {
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("pointermove", (event) => {
      if (!event.buttons) return;
      if (event.shiftKey || event.buttons > 1) {
        view.shift[0] += event.movementX;
        view.shift[1] += event.movementY;
      } else {
        view.turn += 0.008 * event.movementX;
        view.tilt = Math.min(1.5, Math.max(-1.5, view.tilt + 0.008 * event.movementY));
      }
      draw();
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // the page scrolls; a pinch arrives with this key
      event.preventDefault();
      view.zoom *= Math.exp(-0.01 * event.deltaY);
      draw();
    }, { passive: false });
  }
}
