// The server's clock, as far as its answers tell. Times are milliseconds since the Unix epoch.

/** Estimates the server's time from the instants of its decisions. */
export class ServerClock {
  #least = -Infinity;
  #most = Infinity;

  /** Returns the server's time. Until its first answer, that is the browser's. */
  now() {
    return performance.timeOrigin + performance.now() + this.#offset();
  }

  /** Returns the browser's time. */
  browserTime() {
    return performance.timeOrigin + performance.now();
  }

  /** Learns that the server's clock showed `decided` between `sent` and `received` on the browser's. */
  observe(sent, received, decided) {
    const [least, most] = [decided - received, decided - sent];
    const agrees = least <= this.#most && most >= this.#least;
    this.#least = agrees ? Math.max(this.#least, least) : least;
    this.#most = agrees ? Math.min(this.#most, most) : most;
  }

  #offset() {
    return Number.isFinite(this.#least) ? (this.#least + this.#most) / 2 : 0;
  }
}

/** Returns the time of day of an instant, such as 12:00:04. */
export const timeOfDay = (at) => new Date(at).toLocaleTimeString('en-GB');
