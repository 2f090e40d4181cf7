-- Walks a file of whole requests, each ended by a zero byte, and tells what came of them as JSON.
-- REQUESTS: the file. SECONDS: for so long requests are sent; then each connection has its last answer and is quiet, and
-- a line on standard error says so: no call is cut off. ONCE=1: no request twice; when all are used up "exhausted" is true.
local ffi = require("ffi")
ffi.cdef [[
  typedef struct { long seconds; long nanoseconds; } bench_time;
  int clock_gettime(int clock, bench_time *told);
]]
local told = ffi.new("bench_time")
local function now()
  ffi.C.clock_gettime(1, told)
  return tonumber(told.seconds) + tonumber(told.nanoseconds) * 1e-9
end

local requests, at, once = {}, 0, os.getenv("ONCE") == "1"
local window = tonumber(os.getenv("SECONDS"))
local calls, finish, is_quiet = 0, 0, false
exhausted = false

local threads = {}
function setup(thread) table.insert(threads, thread) end

function init(_)
  local file = assert(io.open(os.getenv("REQUESTS"), "rb"))
  local text = file:read("*a")
  file:close()
  local from = 1
  while true do
    local to = string.find(text, "\0", from, true)
    if not to then break end
    requests[#requests + 1] = string.sub(text, from, to - 1)
    from = to + 1
  end
end

local function fall_quiet()
  if not is_quiet then
    is_quiet = true
    io.stderr:write("quiet\n")
    io.stderr:flush()
  end
  return ""
end

function request()
  calls = calls + 1
  if calls == 1 then return requests[1] end -- wrk looks at one before it connects; this one is never sent
  if calls == 2 then finish = now() + window end
  if exhausted or now() > finish then return fall_quiet() end
  if at == #requests then
    if once then
      exhausted = true
      return fall_quiet()
    end
    at = 0
  end
  at = at + 1
  return requests[at]
end

function done(summary, latency, _)
  local is_exhausted = false
  for _, thread in ipairs(threads) do
    if thread:get("exhausted") then is_exhausted = true end
  end
  local errors = summary.errors
  io.write(string.format(
    '\n{"seconds":%.6f,"answers":%d,"refused":%d,"broken":%d,"p50Us":%.1f,"p99Us":%.1f,"maxUs":%.1f,"exhausted":%s}\n',
    window, summary.requests, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency.max, tostring(is_exhausted)))
end
