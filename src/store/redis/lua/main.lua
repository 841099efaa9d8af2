-- Performs requests one after the other, each all or nothing, at one instant.
--
-- KEYS are the keys of all requests, in the order in which these name them. ARGV[1] is empty, or a clock for tests: the
-- instant in µs, and for how many ms keys are kept longer. ARGV[2] is the requests, as request.rs encodes them:
--
--   request   task, number of cells, number of keys, length of the request (2 bytes), then its cells, or the override
--             to set
--   cell      tag of the algorithm, veto, whether it can be overridden, its arguments
--   refund    tag of the algorithm, mark, its arguments; to renew a slot, the same
--   arguments cost, capacity, capacity with overage, amount (of a counter, the weight of its previous window in
--             percent), span in µs, and those that only this algorithm has; then, if it can be overridden and is no
--             refund, its overage in percent, the capacity beyond its size, which an override keeps, and the amount of
--             its size; then, if the task is a lease, the tokens of the block that it wants
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
-- The state of a key is 22 bytes: two instants in µs, and two counts under 2^32. The first instant is its expiry. The
-- instant until which Redis keeps the key may follow, if that is not the expiry. Logs are lists.
--
-- A call runs all of this anew. Each function and table that it creates costs 0.1 µs, and as much again for each
-- variable of another function that it uses. So algorithms are functions of numbers (except for logs), created when a
-- request needs them. script.rs inserts the files of algorithms and tasks, and replaces the names of enums in Rust,
-- such as `ScriptTag.Queue`, by their numbers.

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

-- Returns the functions of an algorithm. That for refunds, and what only it needs, is created if asked for.
local function algorithm(tag, is_refund)
  -- Insert the algorithms here.
  error({ err = 'UNSUPPORTED the script has no algorithm with the tag ' .. tag })
end

-- Performs requests that are alike but for their keys: those of several cells, those that decide nothing, and others
-- that are less frequent. Returns the number of parts of the reply.
local function perform(progress, task, count, keys, same)
  local KEYS, text, now, reply, margin = KEYS, ARGV[2], progress.now, progress.reply, progress.margin
  local call, byte, char, pack, unpack = redis.call, string.byte, string.char, struct.pack, struct.unpack
  local length, start = progress.length, progress.place + 5

  -- Returns the state that a key holds, and what it says, and until when the key is kept.
  local function read(key)
    local state = call('GET', key)
    if not state then return '', 0, 0, 0, 0, 0 end
    if #state == 29 then return state, unpack('<I7I7I4I4I7', state) end
    if #state ~= 22 then error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' }) end
    local expires, at, first, second = unpack('<I7I7I4I4', state)
    return state, expires, at, first, second, expires
  end

  -- Writes the state of a key, as `run` does. After a refund, its expiry may be earlier than the time to live.
  local function write(key, kept, expires, at, first, second, slack)
    local is_kept = expires <= kept and kept <= expires + slack
    if not is_kept then kept = kept > 0 and expires + math.floor(slack) or expires end
    local state = kept == expires and pack('<I7I7I4I4', expires, at, first, second)
      or pack('<I7I7I4I4I7', expires, at, first, second, kept)
    if is_kept then return call('SETRANGE', key, '0', state) end
    call('SET', key, state, 'PXAT', string.format('%d', math.ceil(kept / 1000) + margin))
  end

  -- The functions of the last algorithm, and its tag.
  local last_tag, peek, charge, refund

  -- Reads the arguments of an algorithm at a position of the text. Returns a cell, and where they end.
  local function cell_at(begin, tag, veto, position, is_refund)
    local cost, capacity, hard, amount, span, place = unpack('<ddddd', text, begin)
    if tag ~= last_tag or tag == ScriptTag.Log then
      peek, charge, refund = algorithm(tag, is_refund)
      last_tag = tag
    end
    -- The first four fields are for what `peek` finds. A table that grows is copied: this one has room for most fields.
    local cell = {
      0, 0, 0, 0, tag = tag, veto = veto, position = position, cost = cost, capacity = capacity, hard = hard,
      amount = amount, span = span, peek = peek, charge = charge, has_room = false, kept = 0,
    }
    if tag == ScriptTag.CalendarWindow then
      -- Scripts know no calendars, so the caller sends the edges, in seconds, of the windows around its own time.
      local seconds, a, b, c, d, e, next_place = now / 1e6, unpack('<ddddd', text, place)
      local window_end = seconds < b and b or seconds < c and c or seconds < d and d or e
      cell.first, place = seconds >= a and seconds < e and window_end * 1e6, next_place
    elseif tag == ScriptTag.Penalty then
      cell.first, cell.second, place = unpack('<dd', text, place)
    elseif tag == ScriptTag.Log then
      cell.first, place = unpack('<d', text, place)
    end
    return cell, place
  end

  -- Insert the tasks here.
  error({ err = 'UNSUPPORTED the script has no task ' .. task })
end

-- Performs the requests that are left. Those of one cell, which has no override, are most frequent and decided here.
local function run(progress)
  local KEYS, text, reply = KEYS, ARGV[2], progress.reply
  local call, byte, pack, unpack = redis.call, string.byte, struct.pack, struct.unpack
  local now, margin = progress.now, progress.margin
  local place, first_key, length = progress.place, progress.key, progress.length
  -- The functions of the last algorithm, most often of the only one, and its tag.
  local last_tag, peek, charge
  -- The last expiry as a string: most keys have that of the one before.
  local last_kept, last_expiry

  while place <= #text do
    -- A request, and those that follow it and differ only in their keys.
    local task, count, keys, low, high, tag, veto = byte(text, place, place + 6)
    local next_place, same = place + low + 256 * high, 0
    if next_place <= #text then
      local _, last = string.find(text, '^=*', next_place)
      next_place, same = last + 1, last + 1 - next_place
    end
    if progress.done > same then
      -- The last of them has failed.
    elseif task < Task.Refund and keys == 1 and tag ~= ScriptTag.Log and tag ~= ScriptTag.CalendarWindow then
      local cost, _, hard, amount, span = unpack('<ddddd', text, place + 8)
      if tag ~= last_tag then
        peek, charge = algorithm(tag)
        last_tag = tag
      end
      local takes = task == Task.Acquire and cost > 0
      for done = progress.done, same do
        -- If an error ends this request, `progress` tells which one it was.
        progress.done, progress.length = done, length
        local key = KEYS[first_key + done]
        local state, size = call('GET', key), 29
        local expires, at, first, second, kept = 0, 0, 0, 0, 0
        if not state then
          state, size = '', 0
        elseif #state == 29 then
          expires, at, first, second, kept = unpack('<I7I7I4I4I7', state)
        elseif #state == 22 then
          expires, at, first, second = unpack('<I7I7I4I4', state)
          kept, size = expires, 22
        else
          error({ err = 'UNREADABLE ' .. key .. ' holds something else: delete it' })
        end
        local has_room, w, x, y = peek(now, cost, hard, amount, span, expires, at, first, second)
        local passes = has_room or veto == Veto.Shadow or cost == 0
        if size == 0 then
          reply[length + 1] = passes and 'y\1\0' or 'n\1\0'
        elseif size == 22 then
          reply[length + 1] = passes and 'y\1\22' or 'n\1\22'
        else
          reply[length + 1] = passes and 'y\1\29' or 'n\1\29'
        end
        reply[length + 2] = state

        if has_room and takes then
          local slack
          expires, at, first, second, slack = charge(now, cost, hard, amount, span, w, x, y)
          state = pack('<I7I7I4I4', expires, at, first, second)
          if expires == kept or size == 29 and expires < kept and kept <= expires + slack then
            -- The rest of the state, and the time to live, remain as they are.
            call('SETRANGE', key, '0', state)
          else
            -- A key that is charged again is kept longer than needed, so that its expiry rarely changes. Changing it
            -- each time would cost 20 % of a call with 64 requests. (`SET` with `KEEPTTL` would return a table.)
            kept = kept > 0 and expires + math.floor(slack) or expires
            if kept > expires then state = state .. pack('<I7', kept) end
            -- Time to live is absolute, because a relative one would start later than `now`.
            if kept ~= last_kept then
              last_kept, last_expiry = kept, string.format('%d', math.ceil(kept / 1000) + margin)
            end
            call('SET', key, state, 'PXAT', last_expiry)
          end
        end
        length = length + 2
      end
    else
      length = perform(progress, task, count, keys, same)
    end
    place, first_key = next_place, first_key + (same + 1) * keys
    progress.place, progress.key, progress.done, progress.length = place, first_key, 0, length
  end
end

-- The present instant, and the ms to add to an expiry: a second, so that a clock that steps back by less finds the usage
-- again. With a test clock, they are the lead of Redis' own clock, and the time for which keys are kept longer.
local time = redis.call('TIME')
local now, margin = time[1] * 1e6 + time[2], 1000
if ARGV[1] ~= '' then
  local own, kept_longer = now
  now, kept_longer = struct.unpack('<dd', ARGV[1])
  margin = math.floor(own / 1000) - math.floor(now / 1000) + kept_longer
end

-- The parts of the reply. A table that grows is copied: this one has room for the reply to one request of one limit.
local reply = { struct.pack('<I7', now), '', '' }
local progress = {
  now = now,
  margin = margin,
  reply = reply,
  -- Where the next request begins in the text and in the keys.
  place = 1,
  key = 1,
  -- How many of the requests with the same text are done.
  done = 0,
  -- The number of parts of the reply.
  length = 1,
}

-- An error ends one request, and those that follow it go on.
local is_done, message
repeat
  is_done, message = pcall(run, progress)
  if not is_done then
    message = type(message) == 'table' and message.err or tostring(message)
    -- Redis 6.2 puts the place before it, `@user_script: 17: -`, and ends the line.
    message = message:sub(1, 999):gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
    local length = progress.length
    reply[length + 1], reply[length + 2] = 'e' .. struct.pack('<I2', #message), message
    progress.done, progress.length = progress.done + 1, length + 2
  end
until is_done
return table.concat(reply, '', 1, progress.length)
