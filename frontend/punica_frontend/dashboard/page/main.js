/** The page: what comes over the link goes into the timeline and the marks, and from there to the screen, once a frame. */

import { TimeChart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { Gpus } from "./gpus.js";
import { Legend } from "./legend.js";
import { Login } from "./login.js";
import { listMarks, Marks, textNear } from "./marks.js";
import { panels } from "./panels.js";
import { onSchemeChange } from "./theme.js";
import { Tiles } from "./tiles.js";
import { Timeline } from "./timeline.js";
import { Trial } from "./try.js";
import { View } from "./view.js";
import { Watch } from "./watch.js";

/** Lists and cards are read, not watched: they change once a second at most. */
const SLOW_MS = 1000;
/** Of a line: a longer stretch of time shows every second row, or every third. */
const MAX_POINTS = 300;

const timeline = new Timeline();
const marks = new Marks();
const view = new View(() => redraw());
const tiles = new Tiles(byId("tiles", HTMLElement));
const legend = new Legend(byId("legend", HTMLElement));
const gpus = new Gpus(byId("gpus", HTMLElement));
const trial = new Trial();
const marksHere = byId("marks-here", HTMLElement);
const eventList = byId("events", HTMLElement);
const state = byId("state", HTMLElement);

/** The newest that was told. @type {any} */
let cluster = null;
let isDrawing = false;
let slowAtMs = 0;

const pages = () => new Map(cluster?.gpus.map((/** @type {any} */ gpu) => [gpu.gpu.uuid, gpu.gpu.num_kv_pages]) ?? []);
const charts = Object.entries(panels(timeline, pages)).map(([name, panel]) => {
  const root = document.querySelector(`[data-chart="${name}"]`);
  return new TimeChart(/** @type {HTMLElement} */ (root), panel, view, () => marks.all, name === "batch" ? hover : undefined);
});

/** @param {import("./timeline.js").Row[]} rows @param {number} index */
function hover(rows, index) {
  legend.show(timeline.uuids, rows[index]);
  const [from, to] = view.window();
  setText(marksHere, textNear(marks.all, rows[index].at, Math.max((to - from) / 150, 0.6)));
}

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
  const step = Math.ceil((to - from) / MAX_POINTS);
  const rows = timeline.rows.filter(
    (row) => row.at >= from - step && row.at <= to + step && (row.at % step === 0 || row === newest),
  );
  for (const chart of charts) chart.draw(rows);
  byId("unzoom", HTMLButtonElement).hidden = view.zoom === null;
  if (view.isPaused) return;
  tiles.show(cluster, newest);
  if (nowMs < slowAtMs) return;
  slowAtMs = nowMs + SLOW_MS * 0.9;
  gpus.show(cluster);
  listMarks(eventList, marks.all);
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
  redraw();
});
begin();
