// The instant that the page shows: the server's time, or an earlier one after a pause, in slow motion, and in a replay.

/** The part of the usual speed that slow motion has. */
const SLOW = 0.5;

export class Playback {
  isPaused = false;
  isSlow = false;
  #clock;
  /** `{shown, at, end}`: the instant that was shown when the server's time was `at`, and when the present comes back. */
  #start = null;

  constructor(clock) {
    this.#clock = clock;
  }

  /** Returns the shown instant. */
  now() {
    const present = this.#clock.now();
    if (!this.#start) return present;
    const speed = this.isPaused ? 0 : this.isSlow ? SLOW : 1;
    const shown = Math.min(this.#start.shown + (present - this.#start.at) * speed, present);
    if (shown < this.#start.end) return shown;
    this.live();
    return present;
  }

  /** Whether the page shows the past up to an end. */
  get isReplay() {
    return Number.isFinite(this.#start?.end);
  }

  /** Stops at the shown instant, or goes on from there. */
  pause(isPaused) {
    this.showFrom(this.now(), this.#start?.end);
    this.isPaused = isPaused;
  }

  /** Shows what comes in slow motion, or at the usual speed. */
  slow(isSlow) {
    this.showFrom(this.now(), this.#start?.end);
    this.isSlow = isSlow;
  }

  /** Goes back to the instant `shown`, and returns to the present at `end`. */
  showFrom(shown, end = Infinity) {
    this.#start = { shown, at: this.#clock.now(), end };
  }

  /** Returns to the present. */
  live() {
    this.#start = null;
    this.isPaused = false;
    this.isSlow = false;
  }
}
