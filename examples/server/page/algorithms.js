// The algorithms: their names, parameters, and what to look for.

/** @typedef {{tokens: number, seconds: number}} Rate The tokens that an algorithm means to allow in a span. */

/**
 * @typedef {object} Algorithm
 * @property {string} name The name of its route.
 * @property {string} title
 * @property {string} summary
 * @property {object[]} parameters The fields of its settings, as the route expects them.
 * @property {function(object): Rate} rate
 * @property {function(object): string} describe Describes settings in a few words.
 * @property {function(object): number} [edges] Returns the seconds from one edge of a window to the next.
 * @property {string} [hint] Explains the parameters.
 * @property {boolean} [delays] Whether it delays requests.
 * @property {boolean} [shown] Whether it is shown at first.
 */

const tokens = (name, label, value, max = 1000) => ({ name, label, value, min: 1, max, step: 1 });
const seconds = (name, label, value) => ({ name, label, value, min: 0.1, max: 3600, step: 'any', unit: 's' });
const choice = (name, label, choices) => ({ name, label, value: choices[0], choices });

const window = [tokens('limit', 'Limit', 10), seconds('period', 'Period', 10)];
const refill = [tokens('amount', 'Amount', 10), seconds('interval', 'Interval', 10)];
const bucket = [tokens('capacity', 'Capacity', 10), ...refill];

const ofWindow = (settings) => ({ tokens: settings.limit, seconds: settings.period });
const ofBucket = (settings) => ({ tokens: settings.amount, seconds: settings.interval });
const rate = ({ tokens, seconds }) => `${tokens} per ${seconds} s`;

/** @type {Algorithm[]} */
export const ALGORITHMS = [
  {
    name: 'fixed-window',
    title: 'Fixed window',
    summary: 'Each window starts at zero. Two bursts around an edge both pass.',
    parameters: window,
    rate: ofWindow,
    describe: (settings) => rate(ofWindow(settings)),
    edges: (settings) => settings.period,
    shown: true,
  },
  {
    name: 'sliding-log',
    title: 'Sliding log',
    summary: 'Keeps every request, and is exact in any window.',
    parameters: window,
    rate: ofWindow,
    describe: (settings) => rate(ofWindow(settings)),
  },
  {
    name: 'sliding-window',
    title: 'Sliding window',
    summary: 'Counts in buckets, and drops the oldest one by one.',
    parameters: [...window, tokens('buckets', 'Buckets', 10)],
    rate: ofWindow,
    describe: (settings) => `${rate(ofWindow(settings))}, ${settings.buckets} buckets`,
    edges: (settings) => settings.period / settings.buckets,
  },
  {
    name: 'sliding-window-counter',
    title: 'Sliding window counter',
    summary: 'Weighs the previous window as if its requests were evenly spread.',
    parameters: [...window, choice('rounding', 'Rounding', ['up', 'down'])],
    rate: ofWindow,
    describe: (settings) => `${rate(ofWindow(settings))}, rounded ${settings.rounding}`,
    edges: (settings) => settings.period,
    shown: true,
  },
  {
    name: 'token-bucket',
    title: 'Token bucket',
    summary: 'Spends a full bucket at once, then as much as it refills.',
    parameters: [...bucket, choice('refill', 'Refill', ['continuous', 'interval'])],
    rate: ofBucket,
    describe: (settings) => `${settings.capacity} at once, ${rate(ofBucket(settings))}`,
    shown: true,
  },
  {
    name: 'leaky-bucket',
    title: 'Leaky bucket',
    summary: 'Fills with each request, leaks steadily, and never overflows.',
    parameters: bucket,
    rate: ofBucket,
    describe: (settings) => `holds ${settings.capacity}, leaks ${rate(ofBucket(settings))}`,
  },
  {
    name: 'leaky-bucket-queue',
    title: 'Leaky bucket queue',
    summary: 'Delays requests until their turn, and sends them on evenly spaced.',
    hint: 'At most 5 wait here: a browser opens six connections to a server, and each waiting request holds one.',
    parameters: [tokens('waiting', 'Waiting', 5, 5), ...refill],
    rate: ofBucket,
    describe: (settings) => `${settings.waiting} may wait, ${rate(ofBucket(settings))}`,
    delays: true,
    shown: true,
  },
];

/** Returns the default settings of an algorithm. */
export function defaults(algorithm) {
  return Object.fromEntries(algorithm.parameters.map(({ name, value }) => [name, value]));
}
