      -- What becomes of the limit: one that is alone is written at once, several are when all are known to have room.
      end
      if state then
        -- An expiry is that of a whole step, so that a charge often finds the one that it is to leave.
        local last = lo + -lo % step
        if not raw or written_hi ~= held_hi or last ~= held_lo + -held_lo % step then
          if hi ~= last_hi or last ~= last_lo then
            last_hi = hi
            last_lo = last
            -- A millisecond of Redis' clock: absolute, as spans that a script works out start later than those that
            -- Redis counts from. Nothing is kept beyond the year 33,658.
            local ms = hi * 1e6 + last / 1000 + shift
            if ms > 1e15 then ms = 1e15 end
            last_expiry = format('%d', ms)
          end
          expires = last_expiry
        end
      end
      if noted then charge.key, charge.state, charge.held, charge.expires = id, state, raw, expires end
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
  if decides and not (wanted or wrong or is_again) then
    local take = takes and room
    for i = 1, (take or owing) and limits or 0 do
      if noted then
        charge = charges[i]
        id, state, rule, cost = charge.key, take and charge.state, charge.rule, charge[1]
        raw, expires = charge.held, charge.expires
      end
      if state and not rule then
        if not raw then
          local kept = try('SET', id, state, 'PXAT', expires)
          if kept.err then wrong = kept end
        else
          -- That keeps its expiry, and tells how long it is: of what has always been so long, what failed if not.
          local kept = try('SETRANGE', id, '0', state)
          if kept ~= 18 then
            wrong = kept
          elseif expires then
            call('PEXPIREAT', id, expires)
          end
        end
      elseif cost == 0 then
        -- Who asks for nothing changes nothing.
      elseif rule then
        if take and charge.free then
          guarded(rule.commit, charge)
        elseif charge.moved then
          -- What another rate left is paid at this one, whatever is decided.
          guarded(rule.adopt, charge)
        end
      elseif owing and owing[i] then
        guarded(drains.adopt, unpack(owing[i]))
      end
      if wrong then break end
    end
    if has_penalty and what ~= 112 and not (room or wrong) then guarded(seldom.strike) end
  end
