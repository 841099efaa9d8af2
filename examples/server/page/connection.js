// Whether the server answers, and decides. An outage is one banner, however many requests fail.

import { timeOfDay } from './clock.js';

/** An outage is over when all requests are answered for so many milliseconds. */
const STABLE = 1000;

/** The number of outages that are kept. */
const MOST = 100;

export class Connection {
  /** The outages so far, each `{from, to}`. While one lasts, its end is infinite. */
  outages = [];
  #banner = document.getElementById('banner');
  #clock;
  /** The server's time of the last answer. */
  #answered;

  constructor(clock) {
    this.#clock = clock;
    this.#answered = clock.now();
  }

  /** The outage that lasts, if there is one. */
  get outage() {
    const last = this.outages.at(-1);
    return last?.to === Infinity ? last : null;
  }

  /** Records that a request sent at `sent` has been answered. */
  answered(sent) {
    const { outage } = this;
    // What was on its way when the outage began does not end it.
    if (outage && sent < outage.failedAt) return;
    const now = this.#clock.now();
    this.#answered = now;
    if (!outage) return;
    outage.answeredAt ??= now;
    if (now - outage.answeredAt < STABLE) return;
    outage.to = outage.answeredAt;
    this.#banner.textContent = '';
  }

  /** Records that a request has failed. Nothing is known since the last answer. */
  failed(text) {
    const failedAt = this.#clock.now();
    if (!this.outage) this.outages.push({ from: this.#answered, to: Infinity });
    if (this.outages.length > MOST) this.outages.shift();
    Object.assign(this.outage, { failedAt, answeredAt: null });
    const message = `${text} Everything below is as of ${timeOfDay(this.outage.from)}.`;
    if (this.#banner.textContent !== message) this.#banner.textContent = message;
  }

  /** Returns the outages that overlap the span from `from` to `to`. */
  between(from, to) {
    return this.outages.filter((outage) => outage.from < to && outage.to > from);
  }
}
