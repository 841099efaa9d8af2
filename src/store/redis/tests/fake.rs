//! A fake of Redis in this process, with as much as the script needs: strings, lists, and their expiry.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use deadpool_redis::redis;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};

use crate::store::redis::request::{self, Request};
use crate::store::redis::script::script;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Held {
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
}

/// The value of a key, and the last ms at which it exists.
pub(super) type Keys = HashMap<Vec<u8>, (Held, Option<u64>)>;

pub(super) struct Fake {
    lua: Lua,
    script: Function,
    pub(super) keys: Rc<RefCell<Keys>>,
    /// The reply to `TIME`, in µs.
    pub(super) time: Rc<Cell<u64>>,
}

impl Fake {
    pub(super) fn new() -> Self {
        Self::build().unwrap()
    }

    fn build() -> mlua::Result<Self> {
        let lua = Lua::new();
        let keys = Rc::<RefCell<Keys>>::default();
        let time = Rc::<Cell<u64>>::default();

        let (held, now) = (keys.clone(), time.clone());
        let call = lua.create_function(move |lua, args: MultiValue| {
            let args: Vec<Vec<u8>> = args.iter().map(text).collect();
            let command = String::from_utf8_lossy(&args[0]).into_owned();
            execute(lua, &mut held.borrow_mut(), now.get(), &command, &args[1..])
        })?;
        let commands = lua.create_table()?;
        commands.set("call", call)?;

        let (held, now) = (keys.clone(), time.clone());
        let tried = lua.create_function(move |lua, args: MultiValue| {
            let args: Vec<Vec<u8>> = args.iter().map(text).collect();
            let command = String::from_utf8_lossy(&args[0]).into_owned();
            execute(lua, &mut held.borrow_mut(), now.get(), &command, &args[1..]).or_else(|error| {
                let failed = lua.create_table()?;
                failed.set("err", error.to_string())?;
                Ok(Value::Table(failed))
            })
        })?;
        commands.set("pcall", tried)?;
        lua.globals().set("redis", commands)?;

        let packing = lua.create_table()?;
        packing.set("pack", lua.create_function(|lua, args: MultiValue| lua.create_string(pack(&args)))?)?;
        packing.set("unpack", lua.create_function(|_, args: (LuaString, LuaString, Option<usize>)| unpack(&args))?)?;
        lua.globals().set("struct", packing)?;

        let script = lua.load(script()).into_function()?;
        // As in Redis, a script must not create globals.
        lua.load("setmetatable(_G, { __newindex = function(_, name) error('global ' .. name) end })").exec()?;
        for name in ["KEYS", "ARGV"] {
            lua.globals().raw_set(name, lua.create_table()?)?;
        }
        Ok(Self { lua, script, keys, time })
    }

    pub(super) fn run(&self, clock: &[u8], requests: &[Request]) -> redis::Value {
        let keys = requests.iter().flat_map(|request| &request.keys).map(|key| key.as_bytes());
        let text = request::encode(requests);
        let strings = |strings: Vec<&[u8]>| {
            let strings = strings.into_iter().map(|string| self.lua.create_string(string));
            self.lua.create_sequence_from(strings.collect::<mlua::Result<Vec<_>>>()?)
        };
        self.lua.globals().set("KEYS", strings(keys.collect()).unwrap()).unwrap();
        self.lua.globals().set("ARGV", strings(vec![clock, &text]).unwrap()).unwrap();
        reply(&self.script.call::<Value>(()).unwrap())
    }

    /// Removes expired keys.
    pub(super) fn expire(&self) {
        let now = self.time.get() / 1_000;
        self.keys.borrow_mut().retain(|_, (_, last)| last.is_none_or(|last| now <= last));
    }
}

fn text(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        other => panic!("{other:?} is not an argument of a command"),
    }
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Integer(number) => *number as f64,
        Value::Number(number) => *number,
        other => panic!("{other:?} is not a number"),
    }
}

fn reply(value: &Value) -> redis::Value {
    match value {
        Value::String(text) => redis::Value::BulkString(text.as_bytes().to_vec()),
        other => panic!("{other:?} is not a reply of the script"),
    }
}

/// The formats `<` and any of `d`, `I4`, `I7`.
fn formats(format: &[u8]) -> impl Iterator<Item = usize> {
    assert_eq!(format[0], b'<');
    let fields = (1..format.len()).filter(|&at| !format[at].is_ascii_digit());
    let fields: Vec<usize> = fields
        .map(|at| match format[at] {
            b'd' => 0,
            b'I' => usize::from(format[at + 1] - b'0'),
            other => panic!("unknown format {other}"),
        })
        .collect();
    fields.into_iter()
}

fn pack(args: &MultiValue) -> Vec<u8> {
    let mut args = args.iter();
    let format = text(args.next().unwrap());
    let mut bytes = Vec::new();
    for (width, value) in formats(&format).zip(args) {
        let value = number(value);
        let fits = value.fract() == 0.0 && value >= 0.0 && value < 2f64.powi(8 * width as i32);
        assert!(fits, "{value} does not fit into {width} bytes");
        bytes.extend_from_slice(&(value as u64).to_le_bytes()[..width]);
    }
    bytes
}

fn unpack((format, packed, from): &(LuaString, LuaString, Option<usize>)) -> mlua::Result<MultiValue> {
    let (format, packed) = (format.as_bytes(), packed.as_bytes());
    let mut at = from.unwrap_or(1) - 1;
    let mut values = MultiValue::new();
    for width in formats(&format) {
        let mut bytes = [0; 8];
        let length = if width == 0 { 8 } else { width };
        bytes[..length].copy_from_slice(packed.get(at..at + length).expect("as many bytes as the format says"));
        let value = if width == 0 { f64::from_le_bytes(bytes) } else { u64::from_le_bytes(bytes) as f64 };
        at += length;
        values.push_back(Value::Number(value));
    }
    values.push_back(Value::Integer(at as i64 + 1));
    Ok(values)
}

fn execute(lua: &Lua, keys: &mut Keys, time: u64, command: &str, args: &[Vec<u8>]) -> mlua::Result<Value> {
    let string = |bytes: Option<&Vec<u8>>| match bytes {
        Some(bytes) => lua.create_string(bytes).map(Value::String),
        None => Ok(Value::Boolean(false)),
    };
    if command == "TIME" {
        let parts = [time / 1_000_000, time % 1_000_000].map(|part| part.to_string());
        return Ok(Value::Table(lua.create_sequence_from(parts)?));
    }
    let int = |at: usize| std::str::from_utf8(&args[at]).unwrap().parse::<i64>().unwrap();
    let key = &args[0];
    let wrong = || mlua::Error::runtime("WRONGTYPE Operation against a key holding the wrong kind of value");
    let text = match keys.get(key) {
        None => None,
        Some((Held::Text(text), _)) => Some(text),
        Some(_) if matches!(command, "GET") => return Err(wrong()),
        Some(_) => None,
    };
    match command {
        "GET" => return string(text),
        "SET" => {
            assert!(args.get(2).is_none_or(|option| option == b"PXAT"));
            let last = (args.len() > 3).then(|| int(3) as u64);
            keys.insert(key.clone(), (Held::Text(args[1].clone()), last));
            return Ok(Value::Table(lua.create_table()?));
        }
        "SETRANGE" => {
            let Some((Held::Text(held), _)) = keys.get_mut(key) else { return Err(wrong()) };
            let from = int(1) as usize;
            held.resize(held.len().max(from + args[2].len()), 0);
            held[from..from + args[2].len()].copy_from_slice(&args[2]);
            return Ok(Value::Integer(held.len() as i64));
        }
        "DEL" => return Ok(Value::Integer(keys.remove(key).is_some().into())),
        "PEXPIREAT" => {
            if let Some((_, last)) = keys.get_mut(key) {
                *last = Some(int(1) as u64);
            }
            return Ok(Value::Integer(1));
        }
        "RPUSH" => {
            keys.entry(key.clone()).or_insert_with(|| (Held::List(VecDeque::new()), None));
        }
        _ => {}
    }
    let Some((held, _)) = keys.get_mut(key) else { return string(None) };
    let Held::List(list) = held else { return Err(wrong()) };
    let index = |at: i64| if at < 0 { at + list.len() as i64 } else { at };
    let range = |from: i64, to: i64| {
        let [from, to] = [index(from).max(0), (index(to) + 1).clamp(0, list.len() as i64)];
        from as usize..to.max(from) as usize
    };
    match command {
        "LINDEX" => string(usize::try_from(index(int(1))).ok().and_then(|at| list.get(at))),
        "LRANGE" => {
            let found: Vec<_> = list.range(range(int(1), int(2))).map(|each| lua.create_string(each)).collect();
            let found: Table = lua.create_sequence_from(found.into_iter().collect::<mlua::Result<Vec<_>>>()?)?;
            Ok(Value::Table(found))
        }
        "LTRIM" => {
            let range = range(int(1), int(2));
            list.truncate(range.end);
            list.drain(..range.start);
            if list.is_empty() {
                keys.remove(key);
            }
            Ok(Value::Boolean(true))
        }
        "LSET" => {
            let at = index(int(1)) as usize;
            list[at] = args[2].clone();
            Ok(Value::Boolean(true))
        }
        "RPUSH" => {
            list.push_back(args[1].clone());
            Ok(Value::Integer(list.len() as i64))
        }
        other => panic!("unknown command {other}"),
    }
}
