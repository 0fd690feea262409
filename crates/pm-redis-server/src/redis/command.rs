//! Commands: what a request asks for.

use super::reply::Reply;
use crate::peer::Change;
use crate::program::{Command, Condition, Registry, parse_integer};
use std::collections::VecDeque;

/// The greatest number of entries that a range returns.
const RANGE_ENTRIES: usize = 10_000;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Write(Command),
    Read(Read),
    /// Reads on this connection need no leader from now on, or need one again.
    ReadOnly(bool),
    Info,
    /// The state of the cluster.
    Status,
    /// A change of the members of the cluster.
    Change(Change),
    Auth(Vec<u8>),
    /// A handshake, perhaps with a password.
    Hello(Option<Vec<u8>>),
    Reply(Reply),
    /// A reply, after which the connection ends.
    Quit,
}

/// A read of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Value(Vec<u8>),
    Values(Vec<Vec<u8>>),
    /// How many of the keys exist.
    Count(Vec<Vec<u8>>),
    Len,
    /// The first entries from a key on and before another one.
    Range {
        from: Vec<u8>,
        to: Vec<u8>,
        limit: usize,
    },
}

type Strings = VecDeque<Vec<u8>>;

/// The action of a request, or an error reply.
pub(crate) fn parse(mut strings: Strings) -> Result<Action, Reply> {
    let name = strings.pop_front().unwrap_or_default().to_ascii_uppercase();
    let count = strings.len();
    let name = str::from_utf8(&name).unwrap_or_default();
    let is_counted = match name {
        "GET" | "ECHO" | "SELECT" | "AUTH" => (1..=2).contains(&count) && (name == "AUTH" || count == 1),
        "SET" => count >= 2,
        "DEL" | "EXISTS" | "MGET" | "CLIENT" => count >= 1,
        "MSET" => count >= 2 && count.is_multiple_of(2),
        "INCRBY" => count == 2,
        "PM.CAS" | "PM.RANGE" => count == 3,
        "PM.CLUSTER" => (1..=3).contains(&count),
        "DBSIZE" | "READONLY" | "READWRITE" => count == 0,
        "CONFIG" => count >= 2,
        "PING" => count <= 1,
        _ => true,
    };
    if !is_counted {
        let name = name.to_ascii_lowercase();
        return Err(Reply::error(format!("ERR wrong number of arguments for '{name}' command")));
    }
    if strings.iter().any(|string| string == Registry::KEY) {
        return Err(Reply::error("ERR this key is reserved"));
    }
    let mut next = || strings.pop_front().unwrap_or_default();
    Ok(match name {
        "GET" => Action::Read(Read::Value(next())),
        "MGET" => Action::Read(Read::Values(strings.into())),
        "EXISTS" => Action::Read(Read::Count(strings.into())),
        "DBSIZE" => Action::Read(Read::Len),
        "PM.RANGE" => {
            let (from, to) = (next(), next());
            let limit = integer(&next())?;
            let limit = usize::try_from(limit).map_err(|_| Reply::error("ERR the limit is negative"))?;
            Action::Read(Read::Range { from, to, limit: limit.min(RANGE_ENTRIES) })
        }
        "SET" => Action::Write(set(strings)?),
        "DEL" => Action::Write(Command::Remove(strings.into())),
        "MSET" => {
            let pairs = (0..count / 2).map(|_| (next(), next())).collect();
            Action::Write(Command::SetAll(pairs))
        }
        "INCRBY" => Action::Write(Command::Add { key: next(), number: integer(&next())? }),
        "PM.CAS" => Action::Write(Command::Swap { key: next(), expected: next(), new: next() }),
        "PING" if count == 0 => Action::Reply(Reply::Simple("PONG")),
        "PING" | "ECHO" => Action::Reply(Reply::Bulk(next())),
        "SELECT" => match next().as_slice() {
            b"0" => Action::Reply(Reply::OK),
            _ => return Err(Reply::error("ERR DB index is out of range")),
        },
        "AUTH" => Action::Auth(strings.pop_back().unwrap_or_default()),
        "HELLO" => hello(strings)?,
        "READONLY" => Action::ReadOnly(true),
        "READWRITE" => Action::ReadOnly(false),
        "CLIENT" => client(&next())?,
        "COMMAND" => Action::Reply(Reply::Array(Vec::new())),
        "CONFIG" if next().eq_ignore_ascii_case(b"GET") => Action::Reply(Reply::Array(Vec::new())),
        "INFO" => Action::Info,
        "PM.CLUSTER" => cluster(strings.make_contiguous())?,
        "QUIT" => Action::Quit,
        _ => {
            let name: String = name.chars().take(64).collect();
            return Err(Reply::error(format!("ERR unknown command '{name}'")));
        }
    })
}

fn integer(text: &[u8]) -> Result<i64, Reply> {
    parse_integer(text).ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))
}

fn set(mut strings: Strings) -> Result<Command, Reply> {
    let mut next = || strings.pop_front().unwrap_or_default();
    let (key, value) = (next(), next());
    let condition = match strings.make_contiguous() {
        [] => Condition::Always,
        [option] if option.eq_ignore_ascii_case(b"NX") => Condition::IfAbsent,
        [option] if option.eq_ignore_ascii_case(b"XX") => Condition::IfPresent,
        _ => return Err(Reply::error("ERR syntax error: only NX or XX; keys do not expire")),
    };
    Ok(Command::Set { key, value, condition })
}

fn hello(mut strings: Strings) -> Result<Action, Reply> {
    match strings.make_contiguous() {
        [] => Ok(Action::Hello(None)),
        [version, rest @ ..] if version == b"2" => match rest {
            [] => Ok(Action::Hello(None)),
            [option, _] if option.eq_ignore_ascii_case(b"SETNAME") => Ok(Action::Hello(None)),
            [option, _, password, ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                Ok(Action::Hello(Some(password.clone())))
            }
            _ => Err(Reply::error("ERR syntax error in HELLO")),
        },
        _ => Err(Reply::error("NOPROTO unsupported protocol version: only 2")),
    }
}

fn cluster(strings: &[Vec<u8>]) -> Result<Action, Reply> {
    let id = |text: &Vec<u8>| {
        u64::try_from(integer(text)?).map_err(|_| Reply::error("ERR the number of a node is not negative"))
    };
    match strings {
        [name] if name.eq_ignore_ascii_case(b"STATUS") => Ok(Action::Status),
        [name, node, address] if name.eq_ignore_ascii_case(b"ADD") => {
            let address = str::from_utf8(address).map_err(|_| Reply::error("ERR the address is no text"))?;
            Ok(Action::Change(Change::Add { id: id(node)?, address: address.to_owned() }))
        }
        [name, node] if name.eq_ignore_ascii_case(b"REMOVE") => {
            Ok(Action::Change(Change::Remove { id: id(node)? }))
        }
        _ => Err(Reply::error("ERR only STATUS, ADD id address and REMOVE id")),
    }
}

fn client(subcommand: &[u8]) -> Result<Action, Reply> {
    Ok(Action::Reply(match subcommand.to_ascii_uppercase().as_slice() {
        b"SETNAME" | b"SETINFO" => Reply::OK,
        b"GETNAME" => Reply::Nil,
        b"ID" => Reply::Integer(1),
        _ => return Err(Reply::error("ERR unknown subcommand of CLIENT")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(line: &str) -> Result<Action, String> {
        let strings = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        parse(strings).map_err(|reply| match reply {
            Reply::Error(message) => message,
            other => panic!("{other:?} is no error"),
        })
    }

    #[test]
    fn commands_have_their_actions() {
        let set = |condition| Action::Write(Command::Set { key: b"k".into(), value: b"v".into(), condition });
        assert_eq!(action("SET k v"), Ok(set(Condition::Always)));
        assert_eq!(action("set k v nx"), Ok(set(Condition::IfAbsent)));
        assert_eq!(action("SET k v XX"), Ok(set(Condition::IfPresent)));
        let pairs = vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())];
        assert_eq!(action("MSET a 1 b 2"), Ok(Action::Write(Command::SetAll(pairs))));
        let add = Action::Write(Command::Add { key: b"k".into(), number: -7 });
        assert_eq!(action("INCRBY k -7"), Ok(add));
        let range = Read::Range { from: b"a".into(), to: b"b".into(), limit: RANGE_ENTRIES };
        assert_eq!(action("PM.RANGE a b 99999999"), Ok(Action::Read(range)));
        assert_eq!(action("AUTH user secret"), Ok(Action::Auth(b"secret".into())));
        assert_eq!(action("HELLO 2 AUTH default secret"), Ok(Action::Hello(Some(b"secret".into()))));
        assert_eq!(action("PM.CLUSTER status"), Ok(Action::Status));
        let add = Change::Add { id: 4, address: "127.0.0.1:7".to_owned() };
        assert_eq!(action("PM.CLUSTER add 4 127.0.0.1:7"), Ok(Action::Change(add)));
        assert_eq!(action("PM.CLUSTER REMOVE 4"), Ok(Action::Change(Change::Remove { id: 4 })));
        assert_eq!(action("PING"), Ok(Action::Reply(Reply::Simple("PONG"))));
        assert_eq!(action("QUIT"), Ok(Action::Quit));
    }

    #[test]
    fn other_commands_are_errors() {
        for line in [
            "FLUSHALL",
            "SET k",
            "SET k v EX 10",
            "SET k v NX XX",
            "SET k v GET",
            "GET",
            "GET a b",
            "MSET a",
            "MSET a 1 b",
            "INCRBY k 1.0",
            "INCRBY k 9223372036854775808",
            "INCRBY k +1",
            "SELECT 1",
            "HELLO 3",
            "CONFIG SET a b",
            "CLIENT KILL",
            "PM.RANGE a b -1",
            "DBSIZE 1",
            "EXPIRE k 1",
            "PM.CLUSTER",
            "PM.CLUSTER add 4",
            "PM.CLUSTER remove -1",
            "PM.CLUSTER remove 4 5",
            "SET \0pm.nodes 1",
            "GET \0pm.nodes",
            "MSET a 1 \0pm.nodes 1",
            "",
        ] {
            assert!(action(line).is_err(), "{line}");
        }
    }
}
