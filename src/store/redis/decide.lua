-- Decides one request after the other, until something is wrong with one. Before it has written anything, it may
-- ask for what is to be made first, by a number: it then begins again.
local function run()
  while at <= length do
    local decides, is_again, has_penalty = true, false, false
    local from, name = at + 5, key
    if byte(text, at) == 61 then
      next_at, next_key = at + 1, name + limits
      for i = 1, limits do
        local charge = charges[i]
        charge.key, charge.moved, name = KEYS[name], false, name + 1
      end
    else
      local keys, low, high
      what, limits, keys, low, high = byte(text, at, at + 4)
      next_at, next_key = at + low + 256 * high, name + keys
      if what == 114 or what == 120 or what == 107 then
        if not seldom then error(1, 0) end
        seldom[what](from, name)
        decides = false
      else
        if seldom then seldom.forget() end
        for i = 1, limits do
          local charge = charges[i]
          if not charge then
            -- All that a rule notes has its place from the start: a table that grows is made anew.
            charge = {
              0, 0, 0, 0, 0, 0, 0, 0, 0,
              key = '', rule = false, peek = false, shadow = false, penalty = false, free = true, moved = false,
              hi = 0, lo = 0, n = 0, count = 0, stamp = 0, one = false, tick = false, first = false, expiry = false,
            }
            charges[i] = charge
          end
          charge.key, charge.moved, charge.one, charge.tick, charge.first = KEYS[name], false, false, false, false
          local letter, size = byte(text, from, from + 1)
          name = name + 1
          if letter == 111 then
            if not seldom then error(1, 0) end
            is_again = seldom.compare(i, KEYS[name], sub_string(text, from + 2, from + 1 + size)) or is_again
            from, name = from + 2 + size, name + 1
            letter = byte(text, from)
          end
          charge.shadow = letter >= 128
          if letter >= 128 then letter = letter - 128 end
          local is_penalised = letter < 97
          if is_penalised then letter = letter + 32 end
          local rule = rules[letter]
          if not rule then error(letter, 0) end
          local numbers = rule.numbers
          charge.rule, charge.peek = rule, rule.peek
          charge[1], charge[2], charge[3], charge[4], charge[5], charge[6], charge[7], charge[8] =
            unpack_from(numbers, text, from + 1)
          from = from + 8 * #numbers - 7
          if is_penalised then
            if not seldom then error(1, 0) end
            charge.penalty, has_penalty = seldom.penalty(KEYS[name], from), true
            from, name = from + 40, name + 1
          elseif charge.penalty then
            charge.penalty = false
          end
        end
        decides = not is_again
      end
    end
    if decides then
      local room, part = true, parts + 1
      for i = 1, limits do
        local charge = charges[i]
        local free, held = charge.peek(charge)
        charge.free = free
        local size = #held
        reply[part + 1] = size == 18 and '\1' or size == 0 and '\0' or char(size / 18)
        reply[part + 2] = held
        part = part + 2
        if has_penalty and charge.penalty then
          free, part = seldom.is_free(charge, part), part + 2
        end
        -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
        if not (free or charge[1] == 0 or charge.shadow) then room = false end
      end
      local take = room and what == 97
      for i = 1, limits do
        local charge = charges[i]
        if take and charge.free and charge[1] > 0 then
          charge.rule.commit(charge)
        elseif charge.moved and charge[1] > 0 then
          -- What another rate left is paid at this one, whatever is decided; but who asks for nothing changes
          -- nothing.
          local adopt = charge.rule.adopt or drains.adopt
          adopt(charge)
        end
      end
      if has_penalty and what ~= 112 and not room then seldom.strike() end
      if part == parts + 3 then
        reply[parts + 1] = room and 'y\1' or 'n\1'
      else
        reply[parts + 1] = char(room and 121 or 110, (part - parts - 1) / 2)
      end
      parts = part
    elseif is_again then
      seldom.ask_again()
    else
      reply[parts + 1] = char(121, 0)
      parts = parts + 1
    end
    at, key = next_at, next_key
  end
end

-- What is to be made: the first limit's rule to begin with.
local wanted = byte(text, 6)
while at <= length do
