/** How numbers, times and names are written. */

/** @param {number | null | undefined} value */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Number.isInteger(value) || Math.abs(value) >= 100 ? String(Math.round(value)) : value.toFixed(1);
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0";
  if (seconds < 0.0995) return `${(seconds * 1e3).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  return `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
}

/** @param {number | null | undefined} share */
export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

/** A share of promises, which is 100 % only if none was broken. @param {number | null} share */
export function keptShare(share) {
  return share === null ? "–" : `${Math.floor(share * 1e3) / 10} %`;
}

/** How long ago something was. @param {number} seconds */
export function ago(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h`;
}

const clockFormat = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** @param {number} unixSeconds */
export function clock(unixSeconds) {
  return clockFormat.format(unixSeconds * 1e3);
}
