      -- What becomes of the limit: one that is alone is written at once, several are when all are known to have room.
      end
      if state then
        -- An expiry is that of a whole step, so that a charge often finds the one that it is to leave: never is it
        -- sooner than that which the key has.
        if not raw or written_hi ~= held_hi or lo > held_lo + -held_lo % step then
          local last = lo + -lo % step
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
        if noted then
          charge[18] = id
          charge[20] = offset
          charge[21] = expires
        else
