-- Performs requests that are alike but for their keys: those of several cells, those that decide nothing, and others
-- that are less frequent. Returns the number of parts of the reply.
local function perform(progress, now, task, count, keys, same)
  local ACQUIRE, PEEK, REFUND, GET_OVERRIDE, SET_OVERRIDE, RESET = 65, 80, 114, 103, 111, 120 -- A, P, r, g, o, x
  local SHADOW, QUOTA = 115, 113 -- s, q
  local QUEUE, CALENDAR_WINDOW, LOG, PENALTY = 113, 107, 108, 112 -- q, k, l, p

  local KEYS, text, reply, margin = KEYS, ARGV[2], progress.reply, progress.margin
  local call, byte, char, pack, unpack = redis.call, string.byte, string.char, struct.pack, struct.unpack
  local length = progress.length

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
  local function cell_at(place, tag, veto, position, is_refund)
    local cost, capacity, hard, amount, span
    cost, capacity, hard, amount, span, place = unpack('<ddddd', text, place)
    if tag ~= last_tag or tag == LOG then
      peek, charge, refund = algorithm(tag, is_refund)
      last_tag = tag
    end
    -- The first four fields are for what `peek` finds. A table that grows is copied: this one has room for most fields.
    local cell = {
      0, 0, 0, 0, tag = tag, veto = veto, position = position, cost = cost, capacity = capacity, hard = hard,
      amount = amount, span = span, peek = peek, charge = charge, has_room = false, kept = 0,
    }
    if tag == CALENDAR_WINDOW then
      -- Scripts know no calendars, so the caller sends the edges, in seconds, of the windows around its own time.
      local seconds, a, b, c, d, e = now / 1e6
      a, b, c, d, e, place = unpack('<ddddd', text, place)
      local window_end = seconds < b and b or seconds < c and c or seconds < d and d or e
      cell.first = seconds >= a and seconds < e and window_end * 1e6
    elseif tag == PENALTY then
      cell.first, cell.second, place = unpack('<dd', text, place)
    elseif tag == LOG then
      cell.first, place = unpack('<d', text, place)
    end
    return cell, place
  end

  -- Gives a cell the size of an override, or its own, with the overage of `Algorithm::with_overage`: a bucket drains
  -- within 2^52 µs.
  local function resize(cell, tokens, amount)
    local span, capacity = cell.span, cell.tag == QUEUE and tokens + 1 or tokens
    local overage = math.min(math.floor(tokens * cell.percent / 100), 4294967295 - tokens)
    local drained, rest
    if cell.tag == 105 then -- i, in whole intervals
      drained = math.floor(4503599627370496 / span) * amount
    elseif amount > 0 and amount * 1048576 < span then
      drained, rest = mul_div(67108864, amount, span)
      drained = drained * 67108864 + mul_div(67108864, rest, span)
    end
    if drained then overage = math.min(overage, math.max(drained - capacity, 0)) end
    cell.capacity, cell.hard, cell.amount = capacity, capacity + overage, amount
  end

  local start = progress.place + 5
  -- Capital letters decide.
  local decides, cells = task < 97, {}
  if decides then
    local place, position = start, 0
    for i = 1, count do
      local tag, veto, is_overridable = byte(text, place, place + 2)
      local cell
      cell, place = cell_at(place + 3, tag, veto, position)
      if is_overridable == 1 then
        cell.percent, place = unpack('<d', text, place)
        cell.tokens, cell.own_amount = tag == QUEUE and cell.capacity - 1 or cell.capacity, cell.amount
      end
      cells[i], position = cell, position + 1 + is_overridable
    end
  end

  for done = progress.done, same do
    -- If an error ends this request, `progress` tells which one it was.
    progress.done, progress.length = done, length
    local first_key, verdict = progress.key + done * keys, length + 1
    length = verdict
    reply[verdict] = 'y\0'
    if decides then
      -- Decide as `decide` in src/decision/decide.rs.
      local keys_read = count

      -- Peek at all.
      local is_allowed, quota_has_room = true, nil
      for i = 1, count do
        local cell = cells[i]
        local key, cost = KEYS[first_key + cell.position], cell.cost
        if cell.percent then
          local state, expires, _, tokens, amount = read(KEYS[first_key + cell.position + 1])
          if expires > 0 and expires <= now then state = '' end
          if state == '' then tokens, amount = cell.tokens, cell.own_amount end
          resize(cell, tokens, amount)
          reply[length + 1], reply[length + 2] = char(#state), state
          length, keys_read = length + 2, keys_read + 1
        end
        local has_room, state, expires, at, first, second
        if cell.tag == LOG then
          has_room, state = cell.peek(key, now, cost, cell.capacity, cell.hard, cell.span, cell.first)
        else
          state, expires, at, first, second, cell.kept = read(key)
          has_room, cell[1], cell[2], cell[3], cell[4] =
            cell.peek(now, cost, cell.hard, cell.amount, cell.span, expires, at, first, second, cell.first)
        end
        local size = #state
        reply[length + 1] = size == 22 and '\22' or size == 29 and '\29' or char(size)
        reply[length + 2] = state
        length = length + 2
        has_room = has_room or cost == 0
        cell.has_room = has_room
        if cell.veto == QUOTA then
          quota_has_room = quota_has_room or has_room
        elseif not has_room and cell.veto ~= SHADOW then
          is_allowed = false
        end
      end
      if quota_has_room == false then is_allowed = false end
      reply[verdict] = char(is_allowed and 121 or 110, keys_read)

      -- Charge all or none. A denial by a limit is a strike for the penalty behind it.
      local is_denied = false
      for i = 1, count do
        local cell = cells[i]
        local charges, has_room, cost = is_allowed and task == ACQUIRE, cell.has_room, cell.cost
        if cell.tag == PENALTY then
          charges = is_denied and task ~= PEEK and cell.amount > 0
        else
          is_denied = not has_room
        end
        if charges and has_room and cost > 0 then
          local key = KEYS[first_key + cell.position]
          if cell.tag == LOG then
            cell.charge(key, margin)
          elseif cell.tag ~= PENALTY then
            write(key, cell.kept, cell.charge(
              now, cost, cell.hard, cell.amount, cell.span, cell[1], cell[2], cell[3], cell[4], cell.first
            ))
          elseif not pcall(write, key, cell.kept, cell.charge(
            now, cost, cell.hard, cell.amount, cell.span, cell[1], cell[2], cell[3], cell[4], cell.first, cell.second
          )) then
            -- The denial stands although Redis refuses writes.
            reply[verdict] = char(78, keys_read) -- N
          end
        end
      end
    elseif task == REFUND then
      local place = start
      for i = first_key, first_key + count - 1 do
        local key, tag = KEYS[i], byte(text, place)
        local marked, marked_at, marked_first, marked_second = unpack('<I7I7I4I4', text, place + 1)
        local cell
        cell, place = cell_at(place + 23, tag, nil, nil, true)
        if tag == LOG then
          cell.peek(key, now, cell.cost, cell.capacity, cell.hard, cell.span, cell.first)
          refund(key, marked, margin)
        else
          local _, expires, at, first, second, kept = read(key)
          local refunded, refunded_at, slack
          refunded, refunded_at, first, second, slack = refund(
            now, cell.cost, cell.hard, cell.amount, cell.span,
            expires, at, first, second, marked, marked_at, marked_first, marked_second
          )
          if expires == 0 or not refunded then
            -- Changes nothing.
          elseif refunded <= now then
            call('DEL', key)
          else
            write(key, kept, refunded, refunded_at, first, second, slack)
          end
        end
      end
    elseif task == GET_OVERRIDE then
      local state, expires = read(KEYS[first_key])
      if expires > 0 and expires <= now then state = '' end
      reply[verdict] = 'y\1' .. char(#state) .. state
    elseif task == SET_OVERRIDE then
      -- For a span in µs, or for good if that is negative.
      local span, tokens, amount = unpack('<dI4I4', text, start)
      if span < 0 then
        call('SET', KEYS[first_key], pack('<I7I7I4I4', 0, 0, tokens, amount))
      else
        write(KEYS[first_key], 0, now + span, 0, tokens, amount, 0)
      end
    elseif task == RESET then
      for i = first_key, first_key + keys - 1 do
        call('DEL', KEYS[i])
      end
    else
      error({ err = 'UNSUPPORTED the script has no task ' .. char(task) })
    end
  end
  return length
end

-- Performs the requests that are left. Those of one cell, which has no override, are most frequent and decided here.
local function run(progress)
  local ACQUIRE, SHADOW, CALENDAR_WINDOW, LOG = 65, 115, 107, 108 -- A, s, k, l

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
    elseif task < 97 and keys == 1 and tag ~= LOG and tag ~= CALENDAR_WINDOW then
      local cost, _, hard, amount, span = unpack('<ddddd', text, place + 8)
      if tag ~= last_tag then
        peek, charge = algorithm(tag)
        last_tag = tag
      end
      local takes = task == ACQUIRE and cost > 0
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
        if size == 0 then
          reply[length + 1] = (has_room or veto == SHADOW or cost == 0) and 'y\1\0' or 'n\1\0'
        elseif size == 22 then
          reply[length + 1] = (has_room or veto == SHADOW or cost == 0) and 'y\1\22' or 'n\1\22'
        else
          reply[length + 1] = (has_room or veto == SHADOW or cost == 0) and 'y\1\29' or 'n\1\29'
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
      length = perform(progress, now, task, count, keys, same)
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
