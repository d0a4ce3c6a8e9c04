/**
 * A chart over time, by uPlot, with a title and the values under the cursor. All charts share one cursor.
 *
 * @typedef {import("./timeline.js").Row} Row
 * @typedef {(number | null)[]} Column
 * @typedef {object} Series
 * @property {string} label
 * @property {string} color
 * @property {boolean} [isFilled]
 * @typedef {object} Panel What a chart shows.
 * @property {string} title
 * @property {(value: number | null | undefined) => string} format
 * @property {import("./ticks.js").Ticks} ticks
 * @property {() => Series[]} series They may change from draw to draw.
 * @property {(rows: Row[]) => Column[]} columns One for each series.
 * @property {boolean} [isStacked] Each series stands on the one before.
 * @property {boolean} [hasMarks]
 * @property {boolean} [hasNoTimes] The chart below it says them.
 * @property {number} [top] The least upper end of its axis.
 * @property {(row: Row) => number} [limit] A dashed line, as high as the values can be.
 */

import { make, setText } from "./dom.js";
import { clock } from "./format.js";
import { drawMarks } from "./marks.js";
import { inDrawingOrder, stacked, styled } from "./series.js";
import { color } from "./theme.js";

/** @type {any} */
const uPlot = /** @type {any} */ (window).uPlot;

const GUTTER_PX = 60;
const AXIS_PX = 24;
/** Series that a description names. */
const MAX_DESCRIBED = 4;

export class TimeChart {
  /** Columns as they are meant, before they were stacked. @type {Column[]} */
  #columns = [];
  /** @type {Row[]} */
  #rows = [];
  /** @type {any} */
  #plot = null;
  #signature = "";
  /** @type {HTMLElement[]} */
  #values = [];

  /**
   * @param {HTMLElement} root
   * @param {Panel} panel
   * @param {import("./view.js").View} view
   * @param {() => import("./marks.js").Mark[]} marks
   * @param {(rows: Row[], index: number, isPointed: boolean) => void} onHover Of the row under the cursor, or the newest.
   */
  constructor(root, panel, view, marks, onHover = () => {}) {
    this.root = root;
    this.panel = panel;
    this.view = view;
    this.marks = marks;
    this.onHover = onHover;
    this.readout = make("span", "readout");
    this.canvas = make("div", "plot");
    this.canvas.setAttribute("role", "img");
    root.append(make("div", "chart-head", make("h2", "", panel.title), this.readout), this.canvas);
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(root);
  }

  /** @param {Row[]} rows Of the window. */
  draw(rows) {
    const series = this.panel.series();
    const signature = series.map(({ label, color }) => label + color).join();
    this.#rows = rows;
    this.#columns = this.panel.columns(rows);
    const data = [rows.map((row) => row.at), ...inDrawingOrder(this.panel.isStacked ? stacked(this.#columns) : this.#columns, this.panel)];
    if (!this.#plot || signature !== this.#signature) this.#build(series, signature, data);
    else this.#plot.setData(data);
    this.#read();
  }

  /** The chart in words, for those who do not see it. */
  describe() {
    const newest = this.#rows.length - 1;
    const values = this.panel.series().map(({ label }, series) => {
      const column = (this.#columns[series] ?? []).filter((value) => value !== null);
      const [now, most] = [this.#columns[series]?.[newest], column.length ? Math.max(...column) : null];
      return `${label} ${this.panel.format(now)} now, at most ${this.panel.format(most)}`.trim();
    });
    this.canvas.setAttribute("aria-label", `${this.panel.title}: ${values.slice(0, MAX_DESCRIBED).join("; ")}`);
  }

  /** Puts the cursor of all charts to a time. @param {number | null} at */
  pointAt(at) {
    const left = at === null ? -10 : this.#plot?.valToPos(at, "x");
    this.#plot?.setCursor({ left, top: 0 }, true, true);
  }

  /** With other colours. */
  restyle() {
    this.#signature = "";
  }

  /** @param {Series[]} series @param {string} signature @param {Column[]} data */
  #build(series, signature, data) {
    this.#signature = signature;
    this.#plot?.destroy();
    this.#plot = new uPlot(this.#options(series), data, this.canvas);
    this.#values = series.map(() => make("b"));
    const shown = this.panel.isStacked ? [] : series.map(({ label, color }, index) => {
      const swatch = make("i", "swatch");
      swatch.style.background = color;
      return make("span", "value", swatch, label ? `${label} ` : "", this.#values[index]);
    });
    this.readout.replaceChildren(...shown);
  }

  #size() {
    return { width: Math.max(this.root.clientWidth, 80), height: Number(this.root.dataset.height) };
  }

  /** @param {Series[]} series */
  #options(series) {
    const { panel, view } = this;
    const [text, line] = [color("muted"), color("line")];
    const axis = { stroke: text, font: "13px system-ui", grid: { stroke: line, width: 1 }, ticks: { show: false } };
    return {
      ...this.#size(),
      legend: { show: false },
      padding: [8, 0, 0, null],
      cursor: {
        y: false,
        points: panel.isStacked ? { show: false } : { size: 6 },
        sync: { key: "time" },
        drag: { x: true, y: false, setScale: false },
      },
      scales: {
        x: { range: () => view.window() },
        y: { range: (/** @type {any} */ _, /** @type {any} */ _min, /** @type {number | null} */ max) => [
          0, Math.max(max ?? 0, panel.top ?? 1, this.#highestLimit()) * 1.08,
        ] },
      },
      axes: [
        { ...axis, ...(panel.hasNoTimes ? { size: 8, values: () => [] } : { size: AXIS_PX, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => this.#times(splits) }), space: 84 },
        { ...axis, size: GUTTER_PX, space: 28, values: (/** @type {any} */ _, /** @type {number[]} */ splits, /** @type {number} */ _axis, /** @type {number} */ _space, /** @type {number} */ increment) =>
          panel.ticks(splits, increment) },
      ],
      series: [{}, ...inDrawingOrder(series.map((one) => styled(one, panel)), panel)],
      hooks: {
        setCursor: [() => this.#read()],
        setSelect: [(/** @type {any} */ plot) => this.#zoom(plot)],
        draw: [
          ...(panel.hasMarks ? [(/** @type {any} */ plot) => drawMarks(plot, this.marks())] : []),
          ...(panel.limit ? [(/** @type {any} */ plot) => this.#drawLimit(plot)] : []),
        ],
      },
    };
  }

  /** @param {any} plot */
  #zoom(plot) {
    const { left, width } = plot.select;
    if (width < 8) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.view.set({ zoom: [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")] });
  }

  /** One at the very end would be cut off. @param {number[]} splits */
  #times(splits) {
    const [from, to] = this.view.window();
    const margin = ((to - from) * 32) / Math.max(this.root.clientWidth - GUTTER_PX, 80);
    return splits.map((at) => (at > to - margin ? "" : clock(at)));
  }

  #highestLimit() {
    const { limit } = this.panel;
    return limit ? Math.max(0, ...this.#rows.map(limit)) : 0;
  }

  /** @param {any} plot */
  #drawLimit(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    for (const row of this.#rows) {
      const height = this.panel.limit?.(row) ?? 0;
      if (height) ctx.lineTo(plot.valToPos(row.at, "x", true), plot.valToPos(height, "y", true));
    }
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.strokeStyle = ctx.fillStyle = color("ink");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.stroke();
    ctx.font = `${13 * devicePixelRatio}px system-ui`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    const newest = this.#rows[this.#rows.length - 1];
    const height = newest ? this.panel.limit?.(newest) ?? 0 : 0;
    if (height) ctx.fillText(`capacity ${height}`, bbox.left + 6, plot.valToPos(height, "y", true) + 4);
    ctx.restore();
  }

  #read() {
    const pointed = this.#plot?.cursor.idx ?? null;
    const index = pointed ?? this.#rows.length - 1;
    if (!this.#rows[index]) return;
    this.#values.forEach((value, series) => setText(value, this.panel.format(this.#columns[series]?.[index])));
    this.onHover(this.#rows, index, pointed !== null);
  }
}
