/** Which stretch of time the charts show: the newest, one that was frozen by a pause, or one that was dragged over. */

export class View {
  rangeS = 120;
  /** @type {[number, number] | null} */
  zoom = null;
  isPaused = false;
  #end = 0;

  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
  }

  /** The newest row's time. A paused view stays where it is. @param {number} at */
  follow(at) {
    if (!this.isPaused) this.#end = at;
  }

  /** @returns {[number, number]} */
  window() {
    return this.zoom ?? [this.#end - this.rangeS, this.#end];
  }

  /** @param {Partial<Pick<View, "rangeS" | "zoom" | "isPaused">>} change */
  set(change) {
    Object.assign(this, change);
    this.onChange();
  }
}
