// The algorithms: their names, parameters, and what each promises.

/** @typedef {{tokens: number, seconds: number}} Rate The tokens that an algorithm means to allow in a span. */

/** @typedef {{from: number, to: number, weight: number}} Frame A span whose requests count with this weight. */

/**
 * @typedef {object} Algorithm
 * @property {string} name The name of its route.
 * @property {string} title
 * @property {string} summary
 * @property {object[]} parameters The fields of its settings, as the route expects them.
 * @property {function(object): Rate} rate
 * @property {function(object): number} most Returns the tokens in that span above which the chart is red: the limit of
 *   a window, or the burst and the rate of a bucket.
 * @property {function(object): string} describe Describes settings in a few words.
 * @property {function(object): number} [edges] Returns the seconds from one edge of a window to the next.
 * @property {function(object, number): Frame[]} [frames] Returns the spans that count at an instant, the earliest first.
 * @property {string} [hint] Explains the parameters.
 * @property {boolean} [delays] Whether it delays requests.
 * @property {boolean} [drains] Whether its bucket drains, rather than fills, while it is unused.
 * @property {boolean} [shown] Whether it is shown at first.
 */

const tokens = (name, label, value, max = 1000) => ({ name, label, value, min: 1, max, step: 1 });
const seconds = (name, label, value) => ({ name, label, value, min: 0.1, max: 3600, step: 'any', unit: 's' });
const choice = (name, label, choices) => ({ name, label, value: choices[0], choices });

const window = [tokens('limit', 'Limit', 10), seconds('period', 'Period', 4)];
const refill = [tokens('amount', 'Amount', 10), seconds('interval', 'Interval', 4)];
const bucket = [tokens('capacity', 'Capacity', 10), ...refill];

const ofWindow = { rate: ({ limit, period }) => ({ tokens: limit, seconds: period }), most: ({ limit }) => limit };
const ofBucket = {
  rate: ({ amount, interval }) => ({ tokens: amount, seconds: interval }),
  most: ({ capacity, amount }) => capacity + amount,
};
const perWindow = ({ limit, period }) => `${limit} per ${period} s`;
const perInterval = ({ amount, interval }) => `${amount} per ${interval} s`;

/** Returns the last edge of windows of `length` milliseconds. */
const edge = (now, length) => Math.floor(now / length) * length;

/** @type {Algorithm[]} */
export const ALGORITHMS = [
  {
    name: 'fixed-window',
    title: 'Fixed window',
    summary: 'Each window starts at zero.',
    parameters: window,
    ...ofWindow,
    describe: perWindow,
    edges: ({ period }) => period,
    frames: ({ period }, now) => [{ from: edge(now, period * 1000), to: now, weight: 1 }],
    shown: true,
  },
  {
    name: 'sliding-log',
    title: 'Sliding log',
    summary: 'Keeps every request, and is exact in any period.',
    parameters: window,
    ...ofWindow,
    describe: perWindow,
    frames: ({ period }, now) => [{ from: now - period * 1000, to: now, weight: 1 }],
  },
  {
    name: 'sliding-window',
    title: 'Sliding window',
    summary: 'Counts in buckets, and drops the oldest one by one.',
    parameters: [...window, tokens('buckets', 'Buckets', 10)],
    ...ofWindow,
    describe: (settings) => `${perWindow(settings)}, ${settings.buckets} buckets`,
    edges: ({ period, buckets }) => period / buckets,
    frames: ({ period, buckets }, now) => {
      const length = (period * 1000) / buckets;
      return [{ from: edge(now, length) - (buckets - 1) * length, to: now, weight: 1 }];
    },
  },
  {
    name: 'sliding-window-counter',
    title: 'Sliding window counter',
    summary: 'Weighs the window before as if its requests were evenly spread.',
    parameters: [...window, choice('rounding', 'Rounding', ['up', 'down']), tokens('weight', 'Weight', 100, 100)],
    ...ofWindow,
    describe: (settings) => `${perWindow(settings)}, rounded ${settings.rounding}`,
    edges: ({ period }) => period,
    frames: ({ period, weight }, now) => {
      const [length, last] = [period * 1000, edge(now, period * 1000)];
      return [
        { from: last - length, to: last, weight: (1 - (now - last) / length) * (weight / 100) },
        { from: last, to: now, weight: 1 },
      ];
    },
    shown: true,
  },
  {
    name: 'token-bucket',
    title: 'Token bucket',
    summary: 'Spends a full bucket at once, then as much as it refills.',
    parameters: [...bucket, choice('refill', 'Refill', ['continuous', 'interval'])],
    ...ofBucket,
    describe: (settings) => `${settings.capacity} at once, ${perInterval(settings)}`,
    shown: true,
  },
  {
    name: 'leaky-bucket',
    title: 'Leaky bucket',
    summary: 'Fills with each request, leaks steadily, and never overflows.',
    parameters: bucket,
    ...ofBucket,
    describe: (settings) => `holds ${settings.capacity}, leaks ${perInterval(settings)}`,
    drains: true,
  },
  {
    name: 'leaky-bucket-queue',
    title: 'Leaky bucket queue',
    summary: 'Delays requests until their turn, and sends them on evenly spaced.',
    hint: 'At most 5 wait here: a browser opens six connections to a server, and each waiting request holds one.',
    parameters: [tokens('waiting', 'Waiting', 5, 5), { ...tokens('burst', 'Burst', 0), min: 0 }, ...refill],
    ...ofBucket,
    most: ({ waiting, burst, amount }) => waiting + burst + amount,
    describe: ({ burst, waiting, ...rate }) => `${burst > 0 ? `${burst} at once, ` : ''}${waiting} may wait, ${perInterval(rate)}`,
    delays: true,
    shown: true,
  },
];

/** Returns the default settings of an algorithm. */
export function defaults(algorithm) {
  return Object.fromEntries(algorithm.parameters.map(({ name, value }) => [name, value]));
}
