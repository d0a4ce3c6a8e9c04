/** More GPUs than a cluster has at a time: a page that stays open for months sees them come and go. */
const MAX_KEYS = 8192;

/**
 * A map that forgets the keys that were set longest ago.
 * @template V
 * @extends {Map<string, V>}
 */
export class Newest extends Map {
  /** @param {string} key @param {V} value */
  set(key, value) {
    this.delete(key);
    super.set(key, value);
    if (this.size > MAX_KEYS) this.delete(this.keys().next().value);
    return this;
  }
}
