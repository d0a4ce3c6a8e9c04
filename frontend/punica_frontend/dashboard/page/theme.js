/** Colours of charts: those of the style sheet, light or dark, and one for each GPU. */

/** @param {string} name Of a custom property, without its dashes. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const dark = matchMedia("(prefers-color-scheme: dark)");

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
