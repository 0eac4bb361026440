// Shapes in space: triangle meshes and fixed lines, drawn by WebGL, which hides what is behind.

const VERTEX = `#version 300 es
uniform mat4 model; // from the mesh to the world
uniform mat3 turn; // from the world to the camera: across, up, away
uniform vec3 middle; // what the camera looks at, in the world
uniform vec2 focus, shift, depth;
uniform float far; // from the camera to the middle
in vec3 position;
out vec3 place;
void main() {
  place = turn * ((model * vec4(position, 1.0)).xyz - middle);
  float w = far + place.z;
  gl_Position = vec4(focus * place.xy + shift * w, depth.x * w + depth.y, w);
}`;
// Facets are flat: their normal follows from the change of the place between pixels.
const FRAGMENT = `#version 300 es
precision highp float;
uniform vec4 color;
uniform bool lit;
in vec3 place;
out vec4 shown;
void main() {
  float light = 1.0;
  if (lit) {
    vec3 normal = normalize(cross(dFdx(place), dFdy(place)));
    if (normal.z > 0.0) normal = -normal;
    light = 0.4 + 0.6 * max(dot(normal, normalize(vec3(-0.3, 0.6, -0.8))), 0.0);
  }
  shown = vec4(light * color.rgb * color.a, color.a);
}`;

/** A picture of shapes, in `canvas`. `works` is false, and `draw` missing, where there is no WebGL 2. */
function Solids(meshes, lines) {
  this.canvas = document.createElement("canvas");
  const gl = this.canvas.getContext("webgl2", { antialias: true });
  this.works = gl !== null;
  if (!gl) return;
  const program = link();
  const places = {};
  for (const name of ["model", "turn", "middle", "focus", "shift", "depth", "far", "color", "lit"]) {
    places[name] = gl.getUniformLocation(program, name);
  }
  const solids = meshes.map(loadMesh);
  const grid = loadLines();
  gl.useProgram(program);
  gl.enable(gl.DEPTH_TEST);
  gl.depthFunc(gl.LEQUAL);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);

  /** Draw shapes {mesh, pose, color, opacity} on so many pixels, as the camera sees them. */
  this.draw = (width, height, camera, shapes) => {
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.uniformMatrix3fv(places.turn, true, camera.turn.flat());
    gl.uniform3fv(places.middle, camera.middle);
    gl.uniform1f(places.far, camera.far);
    gl.uniform2fv(places.focus, camera.focus);
    gl.uniform2fv(places.shift, camera.shift);
    gl.uniform2fv(places.depth, camera.depth);
    gl.disable(gl.BLEND);
    drawLines();
    for (const each of shapes.filter(({ opacity }) => opacity >= 1)) drawShape(each);
    gl.enable(gl.BLEND);
    for (const each of shapes.filter(({ opacity }) => opacity < 1)) drawShape(each);
  };

  function link() {
    const made = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(made, shader);
    }
    gl.bindAttribLocation(made, 0, "position");
    gl.linkProgram(made);
    return made;
  }

  /** Put a mesh on the graphics processor; its vertices stay parts of its extent, in 16 bits. */
  function loadMesh(mesh) {
    const vertices = new Uint16Array(decode(mesh.vertices));
    const triangles = new Uint16Array(decode(mesh.triangles));
    const array = gl.createVertexArray();
    gl.bindVertexArray(array);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, vertices, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 3, gl.UNSIGNED_SHORT, true, 0, 0);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, triangles, gl.STATIC_DRAW);
    gl.bindVertexArray(null);
    return { array, count: triangles.length, low: mesh.low, extent: mesh.extent };
  }

  /** Put the polylines on the graphics processor, as pairs of ends. */
  function loadLines() {
    const ends = [];
    for (const { shape, values } of lines) {
      for (let i = 0; i + 1 < shape[0]; i++) ends.push(...values.subarray(3 * i, 3 * i + 6));
    }
    const array = gl.createVertexArray();
    gl.bindVertexArray(array);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(ends), gl.STATIC_DRAW);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 3, gl.FLOAT, false, 0, 0);
    gl.bindVertexArray(null);
    return { array, count: ends.length / 3 };
  }

  function drawLines() {
    if (!grid.count) return;
    gl.uniformMatrix4fv(places.model, false, [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
    gl.uniform1i(places.lit, 0);
    gl.uniform4f(places.color, 0.75, 0.75, 0.75, 1);
    gl.bindVertexArray(grid.array);
    gl.drawArrays(gl.LINES, 0, grid.count);
  }

  function drawShape({ mesh, pose, color, opacity }) {
    const { array, count, low, extent } = solids[mesh];
    const origin = multiply(pose.turn, low).map((value, d) => value + pose.place[d]);
    const columns = extent.map((size, k) => [...pose.turn.map((row) => row[k] * size), 0]);
    const model = [...columns.flat(), ...origin, 1];
    gl.uniformMatrix4fv(places.model, false, model);
    gl.uniform1i(places.lit, 1);
    gl.uniform4fv(places.color, [...tonesOf(color), opacity]);
    gl.bindVertexArray(array);
    gl.drawElements(gl.TRIANGLES, count, gl.UNSIGNED_SHORT, 0);
  }

  /** Red, green and blue, 0 to 1, of "#rrggbb". */
  function tonesOf(color) {
    return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255);
  }
}

/** A pose from a quaternion x, y, z, w, which need not be of unit length, and a place. */
function poseOf([x, y, z, w, ...place]) {
  const s = 2 / (x * x + y * y + z * z + w * w);
  const turn = [
    [1 - s * (y * y + z * z), s * (x * y - z * w), s * (x * z + y * w)],
    [s * (x * y + z * w), 1 - s * (x * x + z * z), s * (y * z - x * w)],
    [s * (x * z - y * w), s * (y * z + x * w), 1 - s * (x * x + y * y)],
  ];
  return { turn, place };
}

/** The pose of what has one in a frame that has the outer one. */
function composed(outer, inner) {
  const columns = [0, 1, 2].map((k) => multiply(outer.turn, inner.turn.map((row) => row[k])));
  return {
    turn: [0, 1, 2].map((d) => columns.map((column) => column[d])),
    place: multiply(outer.turn, inner.place).map((value, d) => value + outer.place[d]),
  };
}

/** A matrix of three rows times a vector. */
function multiply(rows, vector) {
  return rows.map((row) => row[0] * vector[0] + row[1] * vector[1] + row[2] * vector[2]);
}
