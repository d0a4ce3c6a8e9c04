/** The card of all GPUs' batches: the heat map, or the stacked chart; what is under the cursor; and the same as a table. */

import { TimeChart } from "./chart.js";
import { byId, keepChildren, make, setText } from "./dom.js";
import { clock, number } from "./format.js";
import { HeatMap } from "./heat_map.js";
import { rowOf } from "./heat_rows.js";
import { Legend } from "./legend.js";
import { near, textOf } from "./marks.js";

/**
 * @typedef {import("./timeline.js").Row} Row
 * @typedef {object} Parts
 * @property {import("./timeline.js").Timeline} timeline
 * @property {import("./view.js").View} view
 * @property {import("./names.js").Names} names
 * @property {import("./marks.js").Marks} marks
 * @property {import("./chart.js").Panel} panel Of the stacked chart.
 * @property {(uuid: string) => number} capacity The most requests of a step.
 * @property {(at: number | null) => void} onTime A time is pointed at.
 * @property {(uuid: string) => void} onOpen A GPU is to be shown.
 */

export class Batches {
  #isStacked = false;
  /** @type {Map<string, { root: HTMLElement, cells: HTMLElement[] }>} */
  #table = new Map();
  /** @type {Row[]} */
  #rows = [];
  #summary = "";
  /** The one that is pointed at. @type {import("./heat_map.js").Cell | null} */
  #cell = null;

  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    const { view, names, marks, capacity, onOpen } = parts;
    this.readout = byId("batch-readout", HTMLElement);
    this.scale = byId("scale", HTMLElement);
    this.heatRoot = byId("heat", HTMLElement);
    this.stackRoot = byId("stack", HTMLElement);
    this.heatMap = new HeatMap(this.heatRoot, {
      view, names, capacity, onOpen, marks: () => marks.all, onPoint: (cell) => this.#point(cell),
    });
    this.legend = new Legend(byId("legend", HTMLElement), names);
    const chart = /** @type {HTMLElement} */ (this.stackRoot.querySelector(".chart"));
    this.chart = new TimeChart(chart, parts.panel, view, () => marks.all, (rows, index) => this.#hover(rows, index));
    byId("batch-order", HTMLSelectElement).addEventListener("change", (event) => {
      this.heatMap.order = /** @type {any} */ (event.target).value;
      this.arrange(this.#rows);
      this.heatMap.draw(this.#rows);
    });
    byId("batch-look", HTMLSelectElement).addEventListener("change", (event) => this.#look(/** @type {any} */ (event.target).value));
    this.restyle();
  }

  restyle() {
    this.heatMap.restyle();
    this.chart.restyle();
    const { gradient, idleColor } = this.heatMap.ramp;
    byId("ramp", HTMLElement).style.background = gradient;
    byId("ramp-idle", HTMLElement).style.background = idleColor;
  }

  /** Draws the window; called often. @param {Row[]} rows */
  draw(rows) {
    this.#rows = rows;
    if (this.#isStacked) this.chart.draw(rows);
    else this.heatMap.draw(rows);
  }

  /** Renews order, scale and texts; called seldom. @param {Row[]} rows */
  arrange(rows) {
    const { timeline, names, capacity } = this.parts;
    this.heatMap.sort(rows);
    const row = rows[rows.length - 1];
    if (!row) return;
    setText(byId("ramp-end", HTMLElement), String(Math.max(1, ...row.uuids.map(capacity))));
    this.#showTable(row);
    const busy = row.batch.filter((size) => size > 0).length;
    const place = row.batch.indexOf(Math.max(...row.batch));
    const busiest = busy ? `; the busiest is ${names.of(row.uuids[place])} with ${number(row.batch[place])} requests a step` : "";
    this.#summary = `${row.uuids.length} GPUs, ${busy} busy in the last second${busiest}`;
    this.heatMap.canvas.setAttribute("aria-label", `Heat map of batch sizes. ${this.#summary}. The table below has all.`);
    this.#tell();
    this.legend.keep(timeline.uuids);
  }

  /** A time that is pointed at in another chart. @param {number | null} at */
  showTime(at) {
    this.heatMap.showTime(at);
  }

  /** @param {string} look */
  #look(look) {
    this.#isStacked = look === "stacked";
    this.stackRoot.hidden = !this.#isStacked;
    this.heatRoot.hidden = this.scale.hidden = this.#isStacked;
    byId("batch-order", HTMLSelectElement).disabled = this.#isStacked;
    this.draw(this.#rows);
  }

  /** @param {import("./heat_map.js").Cell | null} cell */
  #point(cell) {
    this.#cell = cell;
    this.parts.onTime(cell ? Math.ceil(cell.at) : null);
    this.#tell();
  }

  /** Says what the cell under the pointer is, or how the cluster does. */
  #tell() {
    setText(this.readout, this.#cell ? this.#textOf(this.#cell) : this.#summary);
  }

  /** @param {import("./heat_map.js").Cell} cell */
  #textOf(cell) {
    const { names, marks, view, capacity } = this.parts;
    const row = rowOf(this.#rows, Math.ceil(cell.at));
    const place = row?.uuids.indexOf(cell.uuid) ?? -1;
    const [from, to] = view.window();
    const here = near(marks.all, cell.at, Math.max((to - from) / 150, 0.6)).filter(
      ({ gpus }) => !gpus.length || gpus.includes(cell.uuid),
    );
    const size = !row || place < 0 ? "not in the cluster"
      : row.most[place] ? `mean ${number(row.batch[place])}, most ${row.most[place]} of ${capacity(cell.uuid)}` : "idle";
    return [clock(cell.at), names.of(cell.uuid), size, ...here.map((mark) => textOf(mark, names))].join(" · ");
  }

  /** @param {Row[]} rows @param {number} index */
  #hover(rows, index) {
    this.legend.show(this.parts.timeline.uuids, rows[index]);
  }

  /** The heat map's text: the last second of each GPU. @param {Row} row */
  #showTable(row) {
    const { names } = this.parts;
    const uuids = [...row.uuids].sort((one, other) => names.compare(one, other));
    keepChildren(byId("batch-table", HTMLElement), this.#table, uuids, (uuid) => {
      const cells = [make("th"), make("td"), make("td")];
      const root = make("tr", "", ...cells);
      root.dataset.gpu = uuid;
      return { root, cells };
    });
    row.uuids.forEach((uuid, index) => {
      const cells = this.#table.get(uuid)?.cells ?? [];
      [names.of(uuid), String(row.batch[index]), String(row.most[index])].forEach((text, at) => setText(cells[at], text));
    });
  }
}
