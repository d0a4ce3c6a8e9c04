/** Times under a canvas, at whole steps of the clock. */

import { clock } from "./format.js";
import { color } from "./theme.js";

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600];
const LABEL_PX = 84;

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{ from: number, to: number, width: number, top: number, x: (at: number) => number }} axis
 */
export function drawTimeAxis(context, { from, to, width, top, x }) {
  const step = STEPS_S.find((seconds) => (seconds / (to - from)) * width >= LABEL_PX) ?? 1200;
  context.fillStyle = color("muted");
  context.font = "13px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "top";
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const place = x(at);
    if (place < LABEL_PX / 3 || place > width - LABEL_PX / 3) continue;
    context.fillRect(Math.round(place), top, 1, 4);
    context.fillText(clock(at), place, top + 7);
  }
}
