/**
 * The colour scale of batch sizes: matplotlib's magma, as `punica-serve simulate` draws figure 13. Lightness alone tells
 * the order, so it reads without colour vision and in print. Idle is a grey of its own: one request is not nothing.
 */

/** magma at equal steps, dark to light. */
const MAGMA = [
  "#000004", "#140e36", "#3b0f70", "#641a80", "#8c2981", "#b73779", "#de4968", "#f7705c", "#fe9f6d", "#fecf92", "#fcfdbf",
];
/** Colours of a ramp. More can't be told apart. */
const NUM_STEPS = 64;

/** @typedef {[number, number, number]} Rgb */

/** @param {string} hex @returns {Rgb} */
function parsed(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** @param {number} share From 0 (dark) to 1 (light). @returns {Rgb} */
function magma(share) {
  const place = share * (MAGMA.length - 1);
  const index = Math.min(Math.floor(place), MAGMA.length - 2);
  const [one, other] = [parsed(MAGMA[index]), parsed(MAGMA[index + 1])];
  return one.map((value, part) => Math.round(value + (other[part] - value) * (place - index)));
}

/** Busier is further from the page: darker on a light one, lighter on a dark one. */
export class Ramp {
  /** @param {boolean} isDark */
  constructor(isDark) {
    const steps = [...Array(NUM_STEPS).keys()].map((step) => step / (NUM_STEPS - 1));
    this.idle = isDark ? [42, 37, 49] : [236, 233, 240];
    this.colors = steps.map((share) => magma(isDark ? 0.26 + 0.74 * share : 0.84 - 0.78 * share));
    /** Pixels of ImageData: idle first. */
    this.pixels = new Uint32Array([this.idle, ...this.colors].map(([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0));
  }

  /** Index in ``pixels``. @param {number} size @param {number} capacity */
  step(size, capacity) {
    if (size <= 0) return 0;
    return 1 + Math.min(NUM_STEPS - 1, Math.floor((size / Math.max(capacity, 1)) * NUM_STEPS));
  }

  /** In CSS. */
  get idleColor() {
    return `rgb(${this.idle.join(" ")})`;
  }

  /** A CSS gradient from one request to a full batch. */
  get gradient() {
    const stops = this.colors.filter((_, index) => index % 7 === 0 || index === NUM_STEPS - 1);
    return `linear-gradient(to right, ${stops.map((rgb) => `rgb(${rgb.join(" ")})`).join(", ")})`;
  }
}
