//! Faults and the calls that they hit, with a text form by which a failing case is repeated.

use core::fmt;
use core::str::FromStr;

/// The errors that have names here.
const ERRORS: [(&str, i32); 6] = [
    ("EAGAIN", libc::EAGAIN),
    ("EINTR", libc::EINTR),
    ("EIO", libc::EIO),
    ("EMFILE", libc::EMFILE),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
];

/// The event that replaces a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process gets SIGKILL.
    Kill,
    /// The call returns this error number.
    Error(i32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("kill"),
            Self::Error(errno) => match ERRORS.iter().find(|(_, number)| number == errno) {
                Some((name, _)) => f.write_str(name),
                None => write!(f, "{errno}"),
            },
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "kill" {
            return Ok(Self::Kill);
        }
        let named = ERRORS.iter().find(|(name, _)| *name == text).map(|(_, errno)| *errno);
        let errno = named.or_else(|| text.parse().ok()).ok_or_else(|| format!("{text:?} is not a fault"))?;
        Ok(Self::Error(errno))
    }
}

/// A fault at one of the counted calls. As text `EIO@17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// The fault.
    pub fault: Fault,
    /// The number of counted calls before the one that is hit.
    pub call: usize,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.fault, self.call)
    }
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (fault, call) = text.split_once('@').ok_or_else(|| format!("{text:?} is not as EIO@17"))?;
        let call = call.parse().map_err(|error| format!("{call:?}: {error}"))?;
        Ok(Self { fault: fault.parse()?, call })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injections_roundtrip() {
        for (fault, text) in
            [(Fault::Kill, "kill@0"), (Fault::Error(libc::EIO), "EIO@0"), (Fault::Error(1), "1@0")]
        {
            let injection = Injection { fault, call: 0 };
            assert_eq!((injection.to_string().as_str(), text.parse()), (text, Ok(injection)));
        }
        for text in ["", "EIO", "EIO@", "EIO@x", "IO@1"] {
            assert!(text.parse::<Injection>().is_err(), "{text}");
        }
    }
}
