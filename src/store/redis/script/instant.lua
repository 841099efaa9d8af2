-- Decides requests one after the other, each all or nothing, at one instant.
--
-- ARGV[1] is empty, or a clock for tests: <instant hi, lo, ms for which keys are kept longer>.
-- ARGV[2] is all requests: of each what is to be done, the numbers of its limits and of its keys, and its
-- length in two bytes; then for each limit the letter of its rule (and 128, if it is not enforced) and the
-- numbers that it works with, the cost first (the letter of a limit in quota mode is less by 64); for a refund preceded by a mark. KEYS are those of all limits in
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
-- What most limits need is written out where it is needed, from files of its own, in local variables that are all
-- the script's: a call makes anew each function and table that it comes by, which costs it more than deciding
-- does. What is seldom needed is functions, made where they are asked for. Keys that hold something else, and
-- commands that Redis refuses, are errors of one request; one of the script itself would be an error of the call.
--
-- Numbers that mean something are written as such. A key holds 18 bytes, or a log for each entry, `<I6I4I4I4`: an
-- instant, and two counts under 2^32. Letters are 97 `a` and so on.
--
-- Instants and spans, exact beyond the 2^53 of Lua's numbers: (hi, lo) is hi * 1e9 + lo µs, lo
-- under 1e9, and n / of a µs more where a bucket counts fractions.

local KEYS, clock, text = KEYS, ARGV[1], ARGV[2]
-- What may fail is tried, as what fails is an answer to one request only.
local call, try = redis.call, redis.pcall
local floor, ceil, fmod, frexp = math.floor, math.ceil, math.fmod, math.frexp
local pack, unpack_from = struct.pack, struct.unpack
local byte, char, format, sub_string = string.byte, string.char, string.format, string.sub

-- The present instant: one for all that is decided here.
local time = call('TIME')
local now = time[1] * 1e6 + time[2]
local now_hi = floor(now / 1e9)
local now_lo = now - now_hi * 1e9
-- By how much Redis' own clock, in ms, is ahead of it.
local shift = 0
-- What is to be made, by a number: the letter of a rule, 1 for what plain limits don't need, 2 for what drains
-- seldom need, and 3 for what spans are counted with, which is made with any.
local wanted
if clock ~= '' then
  local hold
  shift = floor(now / 1000)
  now_hi, now_lo, hold = unpack_from('<ddd', clock)
  now = now_hi * 1e9 + now_lo
  shift = shift - (now_hi * 1e6 + floor(now_lo / 1000)) + hold
end
-- `now` is exact under 2^53.
if now_hi >= 9007199 then wanted = 3 end

local at, key, length, next_at, next_key = 1, 1, #text
local reply, parts = { pack('<I6I4I4I4', now_hi, now_lo, 0, 0), '', '', '' }, 1
-- Up to where requests are all the same as the one that was read last.
local alike = 0
-- What is to be done, for how many limits, of how many that decides, whether it takes, and why it can't be: a number
-- is what is wanted for it.
local what, limits, decides, takes, wrong
-- One for each limit of a request and of those that are all the same. A limit that is alone and plain has none, and
-- only the variables below: is it `noted`?
local charges, noted
-- What else a request may have; and where in the text it is.
local is_again, has_penalty, from
-- Of one limit: its letter, or its rule if that is functions and not written out below, and the numbers that it works
-- with;
local letter, rule, is_shadow, is_quota, cost, a, b, c, d, e, f, g, grade, grain
-- what its key held, and the instant of that, unless the expiry is another one;
local raw, held_hi, held_lo
-- and what is worked out once for all requests that are alike: also how the answer of several limits begins.
local allowed, denied
local one, tick, latest, first, first_hi, first_lo
local last_period, end_hi, end_lo
-- The last expiry that was written out: keys that are charged together often vanish together.
local last_hi, last_lo, last_expiry

local rules, plus, add, sub, more, apart, rest_of, window_start, divide, expiry, read, write, guarded
local seldom, drains
