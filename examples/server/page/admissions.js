// The admitted tokens of a lane, and how many of them are in a rolling window.

/** The number of admissions that are kept. */
const MOST = 5000;

export class Admissions {
  #window;
  /** In order of time. */
  #admitted = [];
  /** Each instant at which a window had more tokens than any that was known before, with their number. */
  #peaks = [];

  /** Creates a record for windows of `window` milliseconds: a token counts from its admission until it is that old. */
  constructor(window) {
    this.#window = window;
  }

  add(at, cost) {
    // Responses may arrive out of order.
    let index = this.#admitted.length;
    while (index > 0 && this.#admitted[index - 1].at > at) index -= 1;
    this.#admitted.splice(index, 0, { at, cost });
    for (let later = index; later < this.#admitted.length && this.#admitted[later].at < at + this.#window; later += 1) {
      const instant = this.#admitted[later].at;
      const count = this.count(instant);
      if (count > this.peak(instant)) this.#peaks.push([instant, count]);
    }
    if (this.#admitted.length > MOST) this.#admitted.shift();
  }

  /** Returns the highest number of tokens in any window until `now`. */
  peak(now) {
    return this.#peaks.reduce((most, [at, count]) => (at <= now ? Math.max(most, count) : most), 0);
  }

  /** Returns the tokens in the window that ends at `at`. */
  count(at) {
    return this.between(at - this.#window, at);
  }

  /** Returns the tokens after `from`, by more than the error of a sum, until `to`. */
  between(from, to) {
    let count = 0;
    for (let index = this.#admitted.length - 1; index >= 0; index -= 1) {
      const { at, cost } = this.#admitted[index];
      if (at <= from + 0.0005) break;
      if (at <= to) count += cost;
    }
    return count;
  }

  /** Returns the instants since `from` at which the count changes, each with the new count. */
  steps(from) {
    const since = from - this.#window;
    const changes = [];
    for (const { at, cost } of this.#admitted) {
      if (at < since) continue;
      changes.push([at, cost], [at + this.#window, -cost]);
    }
    changes.sort((one, other) => one[0] - other[0]);
    let count = 0;
    return changes.map(([at, change]) => [at, (count += change)]);
  }
}
