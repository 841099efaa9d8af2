// The instant that the page shows: the server's time, or an earlier one after a pause, in slow motion, and in a replay.

/** The part of the usual speed that slow motion has. */
const SLOW = 0.5;

export class Playback {
  isPaused = false;
  isSlow = false;
  #clock;
  /** The instant that was shown when the server's time was `at`, or nothing while the page shows the present. */
  #start = null;

  constructor(clock) {
    this.#clock = clock;
  }

  /** Returns the shown instant. */
  now() {
    const present = this.#clock.now();
    if (!this.#start) return present;
    const speed = this.isPaused ? 0 : this.isSlow ? SLOW : 1;
    return Math.min(this.#start.shown + (present - this.#start.at) * speed, present);
  }

  get isLive() {
    return this.#start === null;
  }

  /** Stops at the shown instant, or goes on from there. */
  pause(isPaused) {
    this.showFrom(this.now());
    this.isPaused = isPaused;
  }

  /** Shows what comes in slow motion, or at the usual speed. */
  slow(isSlow) {
    this.showFrom(this.now());
    this.isSlow = isSlow;
  }

  /** Goes back to the instant `shown`. */
  showFrom(shown) {
    this.#start = { shown, at: this.#clock.now() };
  }

  /** Returns to the present. */
  live() {
    this.#start = null;
    this.isPaused = false;
    this.isSlow = false;
  }
}
