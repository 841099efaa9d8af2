-- Decides requests one after the other, each all or nothing, at one instant.
--
-- ARGV[1] is empty, or a clock for tests: <instant hi, lo, ms for which keys are kept longer>.
-- ARGV[2] is all requests: of each what is to be done, the numbers of its limits and of its keys, and its
-- length in two bytes; then for each limit the letter of its rule (and 128, if it is not enforced) and the
-- numbers that it works with, the cost first; for a refund preceded by a mark. KEYS are those of all limits in
-- the same order. A limit whose size may be another for its key begins with what the caller believes that to be,
-- and has a second key that says what it is. The letter of a limit with a penalty is in upper case, what that
-- works with is behind the rule's numbers, and its key behind the limit's. A request that is all the same as the
-- one before it, but for its keys, one for each limit, is told by one byte.
--
-- The reply is one string, as neither side then has to take it apart into many: the instant, then
-- for each request whether it was allowed, the number of keys whose states follow (of a limit, and of its
-- penalty), and for each how many states it held before, and those. Or else the error that kept it from being
-- decided.
--
-- A caller who worked the numbers out from what is not so is to ask again: nothing is decided, and of each
-- limit the states are told that say what is.
--
-- Numbers that mean something are written as such, with no name: each that a function knows of costs it. A key
-- holds 18 bytes, or a log for each entry, `<I6I4I4I4`: an instant, and two counts under 2^32. Letters are 97
-- `a` and so on.
--
-- Instants and spans, exact beyond the 2^53 of Lua's numbers: (hi, lo) is hi * 1e9 + lo µs, lo
-- under 1e9, and n / of a µs more where a bucket counts fractions.

local KEYS, ARGV = KEYS, ARGV
local call, floor, ceil, fmod, frexp = redis.call, math.floor, math.ceil, math.fmod, math.frexp
local pack, unpack_from = struct.pack, struct.unpack
local byte, char, format, sub_string = string.byte, string.char, string.format, string.sub

-- The present instant: one for all that is decided here.
local now_hi, now_lo
-- By how much Redis' own clock, in ms, is ahead of it.
local shift = 0

local time = call('TIME')
local micros = time[1] * 1e6 + time[2]
now_hi = floor(micros / 1e9)
now_lo = micros - now_hi * 1e9
if ARGV[1] ~= '' then
  local hold
  now_hi, now_lo, hold = unpack_from('<ddd', ARGV[1])
  shift = floor(micros / 1000) - (now_hi * 1e6 + floor(now_lo / 1000)) + hold
end

local text, at, key = ARGV[2], 1, 1
local length, next_at, next_key = #text, 1, 1
local reply, parts = { pack('<I6I4I4I4', now_hi, now_lo, 0, 0) }, 1
-- What is to be done, and for how many limits.
local what, limits
-- One for each limit of a request, used again by the next request: all that its rule reads, its
-- rule has written before.
local charges = {}
local rules = {}

-- (hi, lo) modulo m, of less than 2^45. `%` would round; fmod is exact.
local function rest_of(hi, lo, m)
  if hi < 9007199 then return fmod(hi * 1e9 + lo, m) end
  -- hi * 1e9 in steps that stay under 2^53
  local rest = fmod(hi, m)
  rest = fmod(fmod(fmod(fmod(rest * 250, m) * 250, m) * 160, m) * 100, m)
  return fmod(rest + fmod(lo, m), m)
end

-- The millisecond of Redis' clock at which (hi, lo) has passed: absolute, as spans that a script
-- works out start later than those that Redis counts from. Nothing is kept beyond the year 33,658.
-- Keys that are charged together often vanish together.
local last_ms, last_expiry
local function expiry(hi, lo)
  local ms = hi * 1e6 + ceil(lo / 1000) + shift
  if ms > 1e15 then ms = 1e15 end
  if ms ~= last_ms then last_ms, last_expiry = ms, format('%d', ms) end
  return last_expiry
end

-- What a key holds: an instant (0 at first) and two counts, and the bytes themselves.
local function read(key)
  local raw = call('GET', key)
  if not raw then return '', 0, 0, 0, 0 end
  if #raw ~= 18 then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
  return raw, unpack_from('<I6I4I4I4', raw)
end

-- Writes what a key holds, to be forgotten at (until_hi, until_lo).
local function write(key, hi, lo, a, b, until_hi, until_lo)
  call('SET', key, pack('<I6I4I4I4', hi, lo, a, b), 'PXAT', expiry(until_hi, until_lo))
end

-- Made where they are asked for, as a call makes anew each function that it comes by: what spans are counted
-- with, and what plain limits don't need.
local plus, add, sub, more, apart, window_start, divide, seldom, drains
