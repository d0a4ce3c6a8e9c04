/** Pieces that show one GPU: bars, and the list of its adapters. */

import { keepChildren, make, setText } from "./dom.js";
import { ago } from "./format.js";

export class Meter {
  /** @param {string} label */
  constructor(label) {
    this.meter = /** @type {HTMLProgressElement} */ (make("progress"));
    this.meter.setAttribute("aria-label", label);
    this.value = make("span", "bar-value");
    this.root = make("div", "meter", make("span", "muted", label), this.meter, this.value);
  }

  /** @param {number} value @param {number} max @param {string} text */
  show(value, max, text) {
    this.meter.max = Math.max(max, 1);
    this.meter.value = value;
    setText(this.value, text);
  }
}

/** @param {any} gpu */
export function batchText(gpu) {
  const { batch_size_mean: mean, batch_size_max: most, gpu: { max_batch_size: capacity } } = gpu;
  return most ? `${mean} / ${capacity}${most > mean ? ` · most ${most}` : ""}` : `idle · ${capacity}`;
}

/** Empty where requests share no pages. @param {any} gpu */
export function knownText({ num_known_kv_pages: known, gpu: { prefix_caching: sharing } }) {
  return sharing ? ` · ${known} cached` : "";
}

/** Beyond this difference from 1, the scheduler's log warns of its profile. */
const WRONG_PROFILE = 0.2;

/** Empty while the steps take about as long as the profile predicts. @param {any} gpu */
export function stepTimeText({ step_time_ratio: ratio }) {
  const isWrong = ratio !== null && Math.abs(ratio - 1) > WRONG_PROFILE;
  return isWrong ? `steps take ${Number(ratio.toPrecision(3))} x the profile's` : "";
}

export class AdapterList {
  /** @type {Map<string, { root: HTMLElement, used: HTMLElement }>} */
  #entries = new Map();

  constructor() {
    this.root = make("ul", "adapters");
  }

  /** Digests, those used last first. @param {any} gpu */
  static byUse(gpu) {
    const used = new Map(gpu.resident_adapters.map((/** @type {string} */ digest, /** @type {number} */ index) => [
      digest, gpu.adapters_used_ns[index],
    ]));
    return [...used.keys()].sort((one, other) => used.get(other) - used.get(one)).map((digest) => ({ digest, usedNs: used.get(digest) }));
  }

  /**
   * @param {{ digest: string, usedNs: number }[]} shown
   * @param {any} told Has the adapters' names, and the caller's tenant.
   * @param {number} nowNs
   */
  show(shown, told, nowNs) {
    const digests = shown.map(({ digest }) => digest);
    keepChildren(this.root, this.#entries, digests, (digest) => entry(digest, told.adapters[digest], told.tenant));
    for (const { digest, usedNs } of shown) {
      const kept = this.#entries.get(digest);
      if (!kept) continue;
      const isUsed = usedNs === nowNs;
      kept.root.classList.toggle("in-use", isUsed);
      setText(kept.used, isUsed ? "in use" : usedNs ? ago((nowNs - usedNs) / 1e9) : "unused");
    }
  }
}

/** @param {{ name: string | null, owner: string | null } | undefined} adapter @param {string} digest @param {string} tenant */
export function adapterName(adapter, digest, tenant) {
  const name = make("span", "adapter", adapter?.name ?? digest.slice(0, 12));
  // One's own needs no word; a shared one may have the same name.
  if (adapter?.owner && adapter.owner !== tenant) name.append(make("span", "owner", adapter.owner));
  name.title = digest;
  return name;
}

/** @param {string} digest @param {{ name: string | null, owner: string | null, rank: number | null }} adapter @param {string} tenant */
function entry(digest, adapter, tenant) {
  const [rank, used] = [make("span", "rank", adapter.rank === null ? "" : `r${adapter.rank}`), make("span", "used")];
  return { root: make("li", "", adapterName(adapter, digest, tenant), rank, used), used };
}
