/** Colours of charts: those of the style sheet, light or dark, and one for each GPU. */

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Colours by name, until the scheme changes: canvases ask for them at each mark. @type {Map<string, string>} */
const known = new Map();
dark.addEventListener("change", () => known.clear());

/** @param {string} name The custom property, without its dashes. */
export function color(name) {
  const value = known.get(name) || getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  known.set(name, value);
  return value;
}

export function isDark() {
  return dark.matches;
}

/** @param {() => void} act */
export function onSchemeChange(act) {
  dark.addEventListener("change", act);
}

/** Neighbours in a stack differ in hue and lightness, however many there are. @param {number} index @param {number} count */
export function gpuColor(index, count) {
  const hue = (350 - index * Math.min(65, 250 / Math.max(count - 1, 1)) + 360) % 360;
  const lightness = (dark.matches ? 0.68 : 0.66) + (index % 2 ? 0.07 : -0.02);
  return `oklch(${lightness.toFixed(2)} 0.13 ${hue.toFixed(0)})`;
}
