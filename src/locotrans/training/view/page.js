"use strict";
/* The page of `locotrans view`. A pose R turns the cloud; the camera looks at it from a side.
   Points and frames come in the object's own coordinates, and R is applied here. Matrices are
   arrays of nine numbers, row by row. */

const $ = (id) => document.getElementById(id);
const AXES = ["#d62728", "#2ca02c", "#1f5fd6"];
const BACKGROUND = [250, 251, 252];
const INK = [34, 48, 60];
const OWN = [1, 0, 0, 0, 1, 0, 0, 0, 1];

let scene = JSON.parse($("state").textContent); // what is shown, with the answers for its own pose
let { live, limit, poses } = scene;
let pose = OWN;
let answers = scene.answers;
let answered = OWN; // the pose that the answers are for
let asking = false;
let again = false;
const camera = { azimuth: 35, elevation: 25, zoom: 1 };

/* ---- rotations ---- */

function times(a, b) {
  const c = new Array(9);
  for (let i = 0; i < 3; i++)
    for (let j = 0; j < 3; j++)
      c[3 * i + j] = a[3 * i] * b[j] + a[3 * i + 1] * b[3 + j] + a[3 * i + 2] * b[6 + j];
  return c;
}

const transpose = (a) => [a[0], a[3], a[6], a[1], a[4], a[7], a[2], a[5], a[8]];
const apply = (a, x, y, z) => [
  a[0] * x + a[1] * y + a[2] * z,
  a[3] * x + a[4] * y + a[5] * z,
  a[6] * x + a[7] * y + a[8] * z,
];

function about(axis, degrees) {
  const c = Math.cos((degrees * Math.PI) / 180);
  const s = Math.sin((degrees * Math.PI) / 180);
  if (axis === 0) return [1, 0, 0, 0, c, -s, 0, s, c];
  if (axis === 1) return [c, 0, s, 0, 1, 0, -s, 0, c];
  return [c, -s, 0, s, c, 0, 0, 0, 1];
}

const fromAngles = ([x, y, z]) => times(about(2, z), times(about(1, y), about(0, x)));

function toAngles(R) { // the inverse of fromAngles, but for the poles
  const degrees = (radians) => (radians * 180) / Math.PI;
  const y = Math.asin(Math.max(-1, Math.min(1, -R[6])));
  return [degrees(Math.atan2(R[7], R[8])), degrees(y), degrees(Math.atan2(R[3], R[0]))];
}

function randomRotation() { // uniform over all rotations: a unit quaternion of four normal numbers
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const q = [normal(), normal(), normal(), normal()];
  const length = Math.hypot(...q);
  const [w, x, y, z] = q.map((value) => value / length);
  return [
    1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
    2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
    2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
  ];
}

/* x to the right, y up, z towards the viewer */
const view = () => times(about(0, camera.elevation - 90), about(2, camera.azimuth));

/* ---- colours ---- */

const RAMP = [[58, 40, 110], [40, 110, 150], [60, 170, 110], [240, 200, 50]]; // from 0 to 1

function ramp(share) {
  const place = Math.max(0, Math.min(0.9999, share)) * (RAMP.length - 1);
  const low = Math.floor(place);
  return RAMP[low].map((value, i) => value + (place - low) * (RAMP[low + 1][i] - value));
}

function pointColor(answer, i) {
  const one = (values) => values[values.length === 1 ? 0 : i]; // a classifier has one for all
  switch ($("color").value) {
    case "prediction": return scene.palette[one(answer.labels)];
    case "confidence": return ramp(one(answer.confidence));
    case "feature": return answer.features ? answer.features.slice(3 * i, 3 * i + 3) : INK;
    default: return INK;
  }
}

const css = (color, share) => // paler the farther away
  `rgb(${color.map((value, i) => Math.round(BACKGROUND[i] + share * (value - BACKGROUND[i]))).join()})`;

/* ---- drawing ---- */

function draw(canvas, answer, kind) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const side = Math.min(width, height);
  const context = canvas.getContext("2d");
  context.fillStyle = css(BACKGROUND, 1);
  context.fillRect(0, 0, width, height);
  const turn = $("back").checked ? view() : times(view(), pose);
  const scale = 0.44 * side * camera.zoom;
  const project = ([x, y, z]) => {
    const near = 4 / (4 - z); // a mild perspective
    return [width / 2 + scale * near * x, height / 2 - scale * near * y, z];
  };
  const share = (z) => 0.35 + 0.65 * Math.max(0, Math.min(1, (z + 1) / 2));
  const things = [];
  const size = Math.max(1.2 * ratio, Math.min(4.5 * ratio, (0.16 * side) / Math.sqrt(scene.points.length / 3)));
  for (let i = 0; i < scene.points.length / 3; i++) {
    const [x, y, z] = project(apply(turn, ...scene.points.slice(3 * i, 3 * i + 3)));
    const color = kind ? [150, 162, 173] : pointColor(answer, i);
    things.push({ z, draw: () => {
      context.fillStyle = css(color, share(z));
      context.beginPath();
      context.arc(x, y, (kind ? 0.6 : 1) * size * (4 / (4 - z)), 0, 7);
      context.fill();
    } });
  }
  if (kind) frameLines(answer.frames[kind], turn, project, share, ratio, context, things);
  things.sort((a, b) => a.z - b.z).forEach((thing) => thing.draw());
}

function frameLines(frames, turn, project, share, ratio, context, things) {
  const wanted = [...document.querySelectorAll(".axis")].map((box) => box.checked);
  scene.shown.forEach((point, row) => {
    const base = scene.points.slice(3 * point, 3 * point + 3);
    for (let axis = 0; axis < 3; axis++) {
      if (!wanted[axis]) continue;
      const step = frames.slice(9 * row + 3 * axis, 9 * row + 3 * axis + 3);
      const tip = base.map((value, i) => value + 0.13 * step[i]);
      const [x0, y0, z0] = project(apply(turn, ...base));
      const [x1, y1, z1] = project(apply(turn, ...tip));
      const color = [1, 3, 5].map((i) => parseInt(AXES[axis].slice(i, i + 2), 16));
      things.push({ z: (z0 + z1) / 2, draw: () => {
        context.strokeStyle = css(color, share((z0 + z1) / 2));
        context.lineWidth = 1.7 * ratio;
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
        context.stroke();
      } });
    }
  });
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    document.querySelectorAll("canvas").forEach((canvas) =>
      draw(canvas, answers[canvas.dataset.network], canvas.dataset.kind));
  });
}

/* ---- what is said of the answers ---- */

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;

function build() { // the cards of the networks, with one canvas each or one for each kind of frames
  $("name").textContent = scene.name;
  const count = scene.points.length / 3;
  $("about").textContent = `${scene.size.toLocaleString("en")} points, of which the networks see ${count.toLocaleString("en")}`;
  $("networks").replaceChildren(...scene.networks.map((network, i) => {
    const card = element("article");
    card.dataset.network = i;
    const clouds = element("div", undefined, "clouds");
    const kinds = $("show-frames").checked ? Object.keys(answers[i].frames) : [];
    card.classList.toggle("split", kinds.length > 1);
    for (const kind of kinds.length ? kinds : [""]) {
      const figure = element("figure");
      const canvas = element("canvas");
      canvas.dataset.network = i;
      canvas.dataset.kind = kind;
      steer(canvas);
      const caption = element("figcaption");
      caption.dataset.kind = kind;
      figure.append(canvas, caption);
      clouds.append(figure);
    }
    card.append(element("h2", network.title), element("div", "", "answer"),
      element("div", "", "facts"), clouds, element("div", "", "legend"));
    return card;
  }));
  say();
}

function say() {
  document.querySelectorAll("article").forEach((card) => {
    const i = Number(card.dataset.network);
    const [network, answer, own] = [scene.networks[i], answers[i], scene.answers[i]];
    const parts = network.task === "parts";
    const name = parts ? `${answer.top.length} part${answer.top.length === 1 ? "" : "s"}` : answer.top[0][0];
    const line = card.querySelector(".answer");
    line.replaceChildren(name + " ", element("small", parts
      ? `${percent(answer.confidence.reduce((a, b) => a + b, 0) / answer.confidence.length)} confident on average`
      : percent(answer.top[0][1])));
    const stays = parts ? answer.stays.kept >= 0.995 : answer.stays.kept === 1;
    card.dataset.stays = stays;
    card.dataset.answer = name;
    const facts = [];
    if (answered === OWN) facts.push(element("div", "the file's own pose, which the others are compared with"));
    else {
      const kept = parts ? `${percent(answer.stays.kept)} of the points keep their part`
        : stays ? "the class stays" : `the class changed: it was ${own.top[0][0]}`;
      facts.push(element("div", kept, stays ? "stays" : "changed"));
      const change = answer.stays.logits;
      facts.push(element("div", `the logits moved by ${change < 0.0005 ? change.toExponential(0) : percent(change)} of their spread`));
      const kinds = Object.entries(answer.stays.frames);
      if (kinds.length) {
        const turn = Math.max(...kinds.map(([, degrees]) => degrees));
        facts.push(element("div", `99% of the frames turned by less than ${Math.max(turn, 0.001).toPrecision(2)}° `
          + "in the object's own coordinates", turn < 1 ? "stays" : "changed"));
      }
    }
    card.querySelector(".facts").replaceChildren(...facts);
    card.querySelectorAll("figcaption").forEach((caption) => consistency(caption, network, answer));
    legend(card.querySelector(".legend"), network, answer);
  });
  redraw();
}

function consistency(caption, network, answer) {
  const kind = caption.dataset.kind;
  if (!kind) return;
  const shown = answer.consistency[kind].map((value, axis) => element("span", ` u${axis + 1} ${value.toFixed(3)}`, `u${axis + 1}`));
  caption.title = "mean cosine of an axis with the same axis of the neighbouring points";
  const name = kind === network.own ? `${kind}, which the network uses` : kind;
  caption.replaceChildren(element("b", name), "local consistency", ...shown);
}

function legend(place, network, answer) {
  const dot = (color, text) => {
    const line = element("span", text);
    const mark = element("i");
    mark.style.background = css(color, 1);
    line.prepend(mark);
    return line;
  };
  const lines = answer.top.map(([name, share]) =>
    dot(network.task === "parts" ? scene.palette[network.names.indexOf(name)] : [200, 207, 213],
      `${name} ${percent(share)}`));
  if ($("color").value === "confidence") lines.push(dot(RAMP[0], "confidence 0%"), dot(RAMP[3], "100%"));
  place.replaceChildren(...lines);
}

/* ---- asking ---- */

function complain(text) {
  $("error").textContent = text || "";
  $("error").hidden = !text;
}

async function post(path, body) {
  let response;
  try {
    response = await fetch(path, { method: "POST", body });
  } catch {
    throw new Error("the program does not answer: is it still running?");
  }
  const value = await response.json().catch(() => ({ error: `the program answered ${response.status}` }));
  if (!response.ok) throw new Error(value.error);
  return value;
}

async function ask() { // one question at a time; the last pose is always answered
  if (!live) return;
  if (asking) { again = true; return; }
  asking = true;
  $("status").textContent = "asking ...";
  do {
    again = false;
    const asked = pose;
    const question = { scene: scene.scene, rotation: asked, category: Number($("category").value || 0) };
    try {
      const got = await post("answer", JSON.stringify(question));
      if (question.scene !== scene.scene) continue; // another file came meanwhile
      answers = got.answers;
      answered = asked;
      say();
    } catch (error) {
      complain(error.message);
    }
  } while (again);
  asking = false;
  $("status").textContent = "";
  document.body.dataset.answered = Number(document.body.dataset.answered || 0) + 1;
}

function turnTo(R) {
  pose = R;
  toAngles(R).forEach((degrees, axis) => {
    document.querySelector(`[data-axis="${axis}"]`).value = Math.round(degrees);
  });
  redraw();
  ask();
}

function show(index) { // a saved pose
  $("pose").value = index;
  $("pose-name").textContent = index ? `${index} of ${poses.length - 1}` : "own";
  pose = answered = index ? poses[index].rotation : OWN;
  answers = poses[index].answers;
  say();
}

async function send(file) {
  if (!live || !file) return;
  if (file.size > limit) {
    complain(`${file.name}: ${file.size.toLocaleString("en")} bytes are too many, the limit is ${limit.toLocaleString("en")}`);
    return;
  }
  $("status").textContent = "reading ...";
  try {
    const category = scene.categories[$("category").value] || "";
    const query = new URLSearchParams({ name: file.name, category });
    scene = await post(`file?${query}`, file);
    complain("");
    answers = scene.answers;
    answered = OWN;
    pose = OWN;
    document.querySelectorAll("[data-axis]").forEach((slider) => { slider.value = 0; });
    fillChoices();
    build();
  } catch (error) {
    complain(error.message);
  }
  $("status").textContent = "";
}

/* ---- controls ---- */

function steer(canvas) { // drag to look around; with the shift key, to turn the object
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!(event.buttons & 1)) return;
    if (event.shiftKey && live) {
      const V = view();
      const turn = times(about(1, 0.5 * event.movementX), about(0, 0.5 * event.movementY));
      turnTo(times(transpose(V), times(turn, times(V, pose))));
      return;
    }
    camera.azimuth += 0.5 * event.movementX;
    camera.elevation = Math.max(-90, Math.min(90, camera.elevation + 0.5 * event.movementY));
    redraw();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    camera.zoom = Math.max(0.3, Math.min(8, camera.zoom * Math.exp(-0.001 * event.deltaY)));
    redraw();
  }, { passive: false });
}

function fillChoices() {
  const options = (select, names, chosen) => {
    select.replaceChildren(...names.map(([value, text]) => {
      const option = element("option", text);
      option.value = value;
      return option;
    }));
    select.value = chosen;
  };
  const parts = scene.networks.some((network) => network.task === "parts");
  const before = $("color").value;
  const colors = [["prediction", parts ? "part" : "class"], ["confidence", "confidence"]];
  const featured = scene.answers.some((answer) => answer.features); // some keep few points' alone
  if (featured) colors.push(["feature", "features (principal components)"]);
  const usual = featured && !parts ? "feature" : "prediction";
  options($("color"), colors, colors.some(([value]) => value === before) ? before : usual);
  options($("category"), scene.categories.map((name, i) => [i, name]), scene.category);
  $("categories").hidden = !scene.categories.length;
  $("category").disabled = !live;
  $("frames").hidden = !scene.answers.some((answer) => Object.keys(answer.frames).length);
}

$("random").addEventListener("click", () => {
  if (live) turnTo(randomRotation());
  else show(1 + ((Number($("pose").value) + Math.floor(Math.random() * (poses.length - 2))) % (poses.length - 1)));
});
$("own").addEventListener("click", () => (live ? turnTo(OWN) : show(0)));
document.querySelectorAll("[data-axis]").forEach((slider) => slider.addEventListener("input", () => {
  pose = fromAngles([0, 1, 2].map((axis) => Number(document.querySelector(`[data-axis="${axis}"]`).value)));
  redraw();
  ask();
}));
$("pose").addEventListener("input", () => show(Number($("pose").value)));
$("back").addEventListener("change", redraw);
$("color").addEventListener("change", say);
$("category").addEventListener("change", ask);
$("show-frames").addEventListener("change", build);
document.querySelectorAll(".axis").forEach((box) => box.addEventListener("change", redraw));
$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { send($("file").files[0]); $("file").value = ""; });
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    document.body.classList.toggle("drop", kind === "dragover" && live);
    if (kind === "drop") send(event.dataTransfer.files[0]);
  });
}
window.addEventListener("resize", redraw);

$("turns").hidden = $("files").hidden = !live;
$("poses").hidden = live;
if (!live) {
  $("pose").max = poses.length - 1;
  $("status").textContent = `saved with the answers for ${poses.length} poses: its own and ${poses.length - 1} random ones`;
}
fillChoices();
build();
if (!live) show(0);
document.body.dataset.ready = "true";
