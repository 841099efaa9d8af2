      -- What becomes of the limit: one that is alone is written at once, several are when all are known to have room.
      end
      if state then
        -- The millisecond of Redis' clock at which (hi, lo) has passed: absolute, as spans that a script works out
        -- start later than those that Redis counts from. Nothing is kept beyond the year 33,658.
        local ms = hi * 1e6 + (lo + -lo % 1000) / 1000 + shift
        if ms > 1e15 then ms = 1e15 end
        if ms ~= last_ms then
          last_ms = ms
          last_expiry = format('%d', ms)
        end
        if not (noted or wrong) then
          local kept = try('SET', id, state, 'PXAT', last_expiry)
          if kept.err then wrong = kept end
        end
      end
      if noted then
        charge.key, charge.state, charge.expiry = id, state, last_expiry
      elseif owing and cost > 0 and not (state or wrong or is_again) then
        guarded(drains.adopt, unpack(owing[1]))
      end
    end
    if noted then
      -- Of one limit, or more.
      if not raw then
        reply[part + 1], reply[part + 2] = '\0', ''
      else
        local size = #raw
        reply[part + 1] = size == 18 and '\1' or char(size / 18)
        reply[part + 2] = raw
      end
      part = part + 2
      if has_penalty and charge.penalty then
        charge.free = free
        free, part = guarded(seldom.is_free, charge, part), part + 2
      end
    end
    -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
    if not (free or cost == 0 or is_shadow) then room = false end
    if wrong then break end
  end
  if noted and decides and not (wanted or wrong or is_again) then
    local take = takes and room
    for i = 1, (take or owing) and limits or 0 do
      local charge = charges[i]
      local state = take and charge.state
      if state and not charge.rule then
        local kept = try('SET', charge.key, state, 'PXAT', charge.expiry)
        if kept.err then wrong = kept end
      elseif charge[1] == 0 then
        -- Who asks for nothing changes nothing.
      elseif charge.rule then
        if take and charge.free then
          guarded(charge.rule.commit, charge)
        elseif charge.moved then
          -- What another rate left is paid at this one, whatever is decided.
          guarded(charge.rule.adopt, charge)
        end
      elseif owing and owing[i] then
        guarded(drains.adopt, unpack(owing[i]))
      end
      if wrong then break end
    end
    if has_penalty and what ~= 112 and not (room or wrong) then guarded(seldom.strike) end
  end
