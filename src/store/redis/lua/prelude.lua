-- Performs requests one after the other, each all or nothing, at one instant.
--
-- KEYS are the keys of all requests, in the order in which these name them. ARGV[1] is empty, or a clock for tests: the
-- instant in µs, and for how many ms keys are kept longer. ARGV[2] is the requests, as request.rs encodes them:
--
--   request   task, number of cells, number of keys, length of the request (2 bytes), then its cells, or the override
--             to set
--   cell      tag of the algorithm, veto, whether it can be overridden, its arguments
--   refund    tag of the algorithm, mark, its arguments
--   arguments cost, capacity, capacity with overage, amount, span in µs, and those that only this algorithm has; then,
--             if it can be overridden and is no refund, its overage in percent
--   override  its validity in µs, negative without an end, then its capacity and its amount (4 bytes each)
--   keys      of a cell: its own, and its override's if it can have one
--
-- A penalty is the cell behind its limit's. Or a request is `=`: the same as the one before it, with other keys.
--
-- The reply is one string, which is cheaper for both sides than an array: the present instant (7 bytes), then for each
-- request `y` if it is allowed, `n` if it is denied, or `N` if it is denied and a strike could not be written, the number
-- of keys that were read, and for each the length of the state that it held before, and that. `e` is an error: its length
-- (2 bytes), and its text. It concerns only its request: a key that holds something else, a command that Redis rejects,
-- an unknown tag.
--
-- The state of a key is 22 bytes: two instants in µs, the first of which is its expiry, and two counts under 2^32. The
-- instant until which Redis keeps the key may follow. Otherwise, it is the expiry. Logs are lists.
--
-- A call runs all of this anew. Each function and table that it creates costs 0.1 µs, and as much again for each
-- variable of another function that it uses. So algorithms are functions of numbers (except for logs), created when a
-- request needs them.

-- Returns floor(a * b / c) and the remainder, exactly, for a < 2^36, b < 2^53, c < 2^46 and a quotient below 2^53.
local function mul_div(a, b, c)
  local product = a * b
  -- Lua's `%` is exact for whole numbers below 2^53.
  if product < 9007199254740992 then
    local rest = product % c
    return (product - rest) / c, rest
  end
  -- Long division: six digits of a, of 6 bits each.
  local floor, fmod = math.floor, math.fmod
  local quotient, digit = 0, 1073741824
  local rest = fmod(b, c)
  local whole = (b - rest) / c * a
  b, rest = rest, 0
  while digit >= 1 do
    local taken = floor(a / digit)
    a = a - taken * digit
    local sum = rest * 64 + taken * b
    rest = fmod(sum, c)
    quotient = quotient * 64 + (sum - rest) / c
    digit = digit / 64
  end
  return whole + quotient, rest
end

-- Returns the functions of an algorithm: its file follows. That for refunds, and what only it needs, is created if
-- asked for.
local function algorithm(tag, is_refund)
local BUCKET, QUEUE, INTERVAL_BUCKET, FIXED_WINDOW, CALENDAR_WINDOW = 98, 113, 105, 119, 107 -- b, q, i, w, k
local COUNTER_DOWN, COUNTER_UP, LOG, PENALTY = 99, 117, 108, 112 -- c, u, l, p
-- Whole numbers below it are exact.
local MAX_EXACT = 9007199254740992

-- connector.rs joins the files of the algorithms, each with its condition, and ends this function.
if tag == BUCKET or tag == QUEUE then
