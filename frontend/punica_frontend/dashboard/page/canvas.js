/** Canvases in device pixels, and what sets their rows and empty places apart. */

import { color } from "./theme.js";

/** A cleared canvas of so many CSS pixels. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function sized(canvas, width, height) {
  const ratio = devicePixelRatio;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    [canvas.width, canvas.height] = [w, h];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Marks where a GPU was not in the cluster. @param {CanvasRenderingContext2D} context */
export function hatch(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  lines.strokeStyle = color("line");
  lines.beginPath();
  for (const [x, y] of [[-1, 1], [0, 6], [5, 7]]) {
    lines.moveTo(x, y);
    lines.lineTo(x + (x ? 2 : 6), y - (x ? 2 : 6));
  }
  lines.stroke();
  return context.createPattern(tile, "repeat") ?? "transparent";
}

/** Sets rows apart. @param {CanvasRenderingContext2D} context @param {number} numRows @param {number} height @param {number} width */
export function drawSeparators(context, numRows, height, width) {
  context.fillStyle = color("paper");
  for (let place = 1; place < numRows; place++) context.fillRect(0, place * height - 1, width, 1);
}
