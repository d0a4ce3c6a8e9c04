/** What the heat map shows of each GPU: its row, and a column a second. No drawing. */

/**
 * @typedef {import("./timeline.js").Row} Row
 * @typedef {"busiest" | "host"} Order
 */

/** The GPUs of these rows, in order. @param {Row[]} rows @param {import("./names.js").Names} names @param {Order} order */
export function orderedGpus(rows, names, order) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const row of rows) row.uuids.forEach((uuid, index) => sums.set(uuid, (sums.get(uuid) ?? 0) + row.batch[index]));
  const uuids = [...sums.keys()].sort((one, other) => names.compare(one, other));
  if (order === "busiest") uuids.sort((one, other) => (sums.get(other) ?? 0) - (sums.get(one) ?? 0));
  return uuids;
}

/**
 * Cells, row by row: an index of the ramp and 1, or 0 where the GPU was not there.
 * @param {Row[]} rows @param {string[]} uuids @param {number} from The first column's second. @param {number} numColumns
 * @param {(size: number, uuid: string) => number} step
 */
export function cellsOf(rows, uuids, from, numColumns, step) {
  const cells = new Uint8Array(uuids.length * numColumns);
  const placeOf = new Map(uuids.map((uuid, place) => [uuid, place]));
  /** @type {string[] | null} */
  let known = null;
  /** @type {number[]} */
  let places = [];
  for (const row of rows) {
    const column = row.at - from;
    if (column < 0 || column >= numColumns) continue;
    if (row.uuids !== known) {
      known = row.uuids;
      places = row.uuids.map((uuid) => placeOf.get(uuid) ?? -1);
    }
    places.forEach((place, index) => {
      if (place >= 0) cells[place * numColumns + column] = 1 + step(row.batch[index], row.uuids[index]);
    });
  }
  return cells;
}

/** How high a row is, so that all GPUs fit, and few are not lost. @param {number} numGpus @param {number} maxHeight */
export function rowHeight(numGpus, maxHeight) {
  const highest = numGpus <= 4 ? 48 : 26;
  return Math.max(6, Math.min(highest, Math.floor(maxHeight / Math.max(numGpus, 1))));
}

/** The rows that are named: with small ones every second, or third. @param {number} numGpus @param {number} height */
export function namedRows(numGpus, height) {
  const stride = Math.ceil(17 / height);
  return [...Array(numGpus).keys()].filter((place) => place % stride === 0);
}
