// The instant that the page shows: the server's time, or an earlier one after a pause, in slow motion, and in a story.

/** The part of the usual speed that slow motion has. */
const SLOW = 0.5;

export class Playback {
  isPaused = false;
  isSlow = false;
  #clock;
  /** `{shown, at, end}`: the instant that was shown when the server's time was `at`, and where to stop. */
  #start = null;

  constructor(clock) {
    this.#clock = clock;
  }

  /** Returns the shown instant. */
  now() {
    const present = this.#clock.now();
    if (!this.#start) return present;
    const { shown, at, end } = this.#start;
    const speed = this.isPaused ? 0 : this.isSlow ? SLOW : 1;
    return Math.min(shown + (present - at) * speed, present, end);
  }

  /** Whether what is shown stands still. */
  get isStill() {
    return this.isPaused || this.now() === this.#start?.end;
  }

  /** Stops at the shown instant, or goes on from there: after the end of a story, with the present. */
  pause(isPaused) {
    if (!isPaused && !this.isPaused) return this.live();
    this.showFrom(this.now(), this.#start?.end);
    this.isPaused = isPaused;
  }

  /** Shows what comes in slow motion, or at the usual speed. */
  slow(isSlow) {
    this.showFrom(this.now(), this.#start?.end);
    this.isSlow = isSlow;
  }

  /** Shows what happened from the instant `shown`, and stops at `end`. */
  showFrom(shown, end = Infinity) {
    this.#start = { shown, at: this.#clock.now(), end };
    this.isPaused = false;
  }

  /** Returns to the present. */
  live() {
    this.#start = null;
    this.isPaused = false;
    this.isSlow = false;
  }
}
