/** The page: what comes over the link goes into the timeline and the marks, and from there to the screen, once a frame. */

import { Batches } from "./batches.js";
import { TimeChart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { GpuPanel } from "./gpu_panel.js";
import { Gpus } from "./gpus.js";
import { Login } from "./login.js";
import { listMarks, Marks } from "./marks.js";
import { Names } from "./names.js";
import { panels } from "./panels.js";
import { Sizes } from "./sizes.js";
import { onSchemeChange } from "./theme.js";
import { Tiles } from "./tiles.js";
import { Timeline } from "./timeline.js";
import { Trial } from "./try.js";
import { View } from "./view.js";
import { Watch } from "./watch.js";

/** Lists, cards and texts are read, not watched: they change once a second at most. */
const SLOW_MS = 1000;

const names = new Names();
const sizes = new Sizes();
const timeline = new Timeline(names);
const marks = new Marks();
const view = new View(() => redraw());
const tiles = new Tiles(byId("tiles", HTMLElement));
const gpuPanel = new GpuPanel(names);
const gpus = new Gpus(byId("gpus", HTMLElement), names, (uuid) => gpuPanel.open(uuid));
const trial = new Trial();
const eventList = byId("events", HTMLElement);
const state = byId("state", HTMLElement);

/** The newest that was told. @type {any} */
let cluster = null;
let isDrawing = false;
let slowAtMs = 0;

const { batch, ...lines } = panels(timeline, sizes);
const charts = Object.entries(lines).map(([name, panel]) => {
  const root = document.querySelector(`[data-chart="${name}"]`);
  const onHover = (/** @type {number | null} */ at) => batches?.showTime(at);
  return new TimeChart(/** @type {HTMLElement} */ (root), panel, view, () => marks.all, (rows, index, isPointed) =>
    onHover(isPointed ? rows[index].at : null));
});
const batches = new Batches({
  timeline, view, names, marks,
  panel: batch,
  capacity: (uuid) => sizes.batch(uuid),
  onTime: (at) => charts[0].pointAt(at),
  onOpen: (uuid) => gpuPanel.open(uuid),
});

const watch = new Watch(take, (linkState) => {
  setText(state, view.isPaused && linkState === "live" ? "paused" : linkState);
  state.dataset.state = view.isPaused && linkState === "live" ? "paused" : linkState;
  if (linkState === "login") login.ask();
});
const login = new Login(() => begin());

/** @param {any} frame */
function take(frame) {
  if (frame.type === "history") timeline.addHistory(frame.history);
  if (frame.type === "cluster") {
    cluster = frame.cluster;
    sizes.take(cluster);
    timeline.addCluster(cluster);
    marks.take(cluster);
  }
  if (!view.isPaused) redraw();
}

/** Draws before the next frame of the screen, however much has come until then. */
function redraw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame((nowMs) => {
    isDrawing = false;
    draw(nowMs);
  });
}

/** @param {number} nowMs */
function draw(nowMs) {
  const newest = timeline.rows[timeline.rows.length - 1];
  if (!newest || !cluster) return;
  view.follow(newest.at);
  const [from, to] = view.window();
  const rows = timeline.rows.filter((row) => row.at >= from - 1 && row.at <= Math.ceil(to));
  const isSlow = nowMs >= slowAtMs;
  if (isSlow) batches.arrange(rows);
  batches.draw(rows);
  for (const chart of charts) chart.draw(rows);
  byId("unzoom", HTMLButtonElement).hidden = view.zoom === null;
  if (isSlow) for (const chart of charts) chart.describe();
  if (view.isPaused) return;
  tiles.show(cluster, newest);
  if (!isSlow) return;
  slowAtMs = nowMs + SLOW_MS * 0.9;
  gpus.show(cluster);
  listMarks(eventList, marks.all, names);
}

function begin() {
  void watch.start(Number(byId("rate", HTMLSelectElement).value));
  void trial.offerAdapters();
}

byId("range", HTMLSelectElement).addEventListener("change", (event) => {
  view.set({ rangeS: Number(/** @type {HTMLSelectElement} */ (event.target).value), zoom: null });
});
byId("rate", HTMLSelectElement).addEventListener("change", () => begin());
byId("unzoom", HTMLButtonElement).addEventListener("click", () => view.set({ zoom: null }));
byId("pause", HTMLButtonElement).addEventListener("click", (event) => {
  const button = /** @type {HTMLButtonElement} */ (event.target);
  view.set({ isPaused: !view.isPaused });
  button.setAttribute("aria-pressed", String(view.isPaused));
  setText(button, view.isPaused ? "Go on" : "Pause");
});
onSchemeChange(() => {
  for (const chart of charts) chart.restyle();
  batches.restyle();
  slowAtMs = 0;
  redraw();
});
begin();
