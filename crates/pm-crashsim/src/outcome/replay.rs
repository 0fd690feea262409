//! The name of a sequence of crashes: `px86-line:9f86d081:12+0,3:2.5/4-1` is the model, a mark of the run, and for each
//! crash the number of events before it, without loads, and its survivors. Kills come first: `7!/12+` is a crash of the process
//! after a kill, with 7 events before the kill, and 12 before the crash, the kill included.
//!
//! Survivors are given by chain, numbered as at that point: after `+` the chains of which something was kept, after `-` those of which something was
//! lost. `3` is all of chain 3, `3:2` its first two steps, and `3:2.5` also chunks 0 and 2 of the next step, the bits of hexadecimal 5.

use crate::model::{Chain, Choices, Chunk, Model, legal_part};
use core::fmt;
use std::env;

/// The environment variable with the crash to replay.
pub(crate) const REPLAY_VARIABLE: &str = "PM_CRASHSIM_REPLAY";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplayId {
    pub(crate) model: Model,
    /// The [mark](crate::Trace::mark) of the crashed run.
    pub(crate) mark: u32,
    /// For each killed process, the number of events before the kill, loads not counted.
    pub(crate) kills: Vec<usize>,
    pub(crate) crashes: Vec<ReplayCrash>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplayCrash {
    /// The number of events before the crash, loads not counted.
    pub(crate) position: usize,
    /// Whether chains that are not among the exceptions were kept.
    others_kept: bool,
    exceptions: Vec<Kept>,
}

/// The survivors of one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    chain: usize,
    /// `None` for the whole chain.
    part: Option<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    whole_steps: usize,
    /// Chunks of the next step, ascending.
    torn: Vec<usize>,
}

impl ReplayCrash {
    /// The shorter of the two notations for exactly `kept` of the chunks pending at `position`.
    pub(crate) fn new(choices: &Choices, position: usize, kept: &[Chunk]) -> Self {
        let parts: Vec<Part> = choices.chains().iter().map(|chain| Part::of(chain, kept)).collect();
        let is_all = |(chain, part): &(usize, &Part)| part.is_all(&choices.chains()[*chain]);
        let kept_count = parts.iter().filter(|part| !part.is_nothing()).count();
        let lost_count = parts.iter().enumerate().filter(|part| !is_all(part)).count();
        let others_kept = lost_count < kept_count;
        let exceptions = parts.iter().enumerate().filter(|entry| match others_kept {
            true => !is_all(entry),
            false => !entry.1.is_nothing(),
        });
        let exceptions = exceptions
            .map(|(chain, part)| Kept { chain, part: (!is_all(&(chain, part))).then(|| part.clone()) });
        Self { position, others_kept, exceptions: exceptions.collect() }
    }

    /// The surviving chunks; `None` if the chains are not those of the name.
    pub(crate) fn kept(&self, choices: &Choices) -> Option<Vec<Chunk>> {
        let chains = choices.chains();
        if self.exceptions.iter().any(|kept| kept.chain >= chains.len()) {
            return None;
        }
        let mut survivors = Vec::new();
        for (number, chain) in chains.iter().enumerate() {
            match self.exceptions.iter().find(|kept| kept.chain == number) {
                Some(Kept { part: Some(part), .. }) => part.append_to(&mut survivors, chain)?,
                Some(Kept { part: None, .. }) => survivors.extend(chain.steps().iter().flatten()),
                None if self.others_kept => survivors.extend(chain.steps().iter().flatten()),
                None => {}
            }
        }
        Some(survivors)
    }

    fn parse(text: &str) -> Option<Self> {
        let sign = text.find(['+', '-'])?;
        let (position, rest) = text.split_at(sign);
        let exceptions = rest[1..].split(',').filter(|entry| !entry.is_empty());
        Some(Self {
            position: position.parse().ok()?,
            others_kept: rest.starts_with('-'),
            exceptions: exceptions.map(Kept::parse).collect::<Option<_>>()?,
        })
    }
}

impl Part {
    fn of(chain: &Chain, kept: &[Chunk]) -> Self {
        let is_whole = |step: &&Vec<Chunk>| step.iter().all(|chunk| chunk.is_among(kept));
        let whole_steps = chain.steps().iter().take_while(is_whole).count();
        let torn = chain.steps().get(whole_steps).into_iter().flatten().enumerate();
        Self { whole_steps, torn: torn.filter(|(_, chunk)| chunk.is_among(kept)).map(|(at, _)| at).collect() }
    }

    fn is_all(&self, chain: &Chain) -> bool {
        self.whole_steps == chain.steps().len()
    }

    fn is_nothing(&self) -> bool {
        self.whole_steps == 0 && self.torn.is_empty()
    }

    fn append_to(&self, survivors: &mut Vec<Chunk>, chain: &Chain) -> Option<()> {
        survivors.extend(chain.steps().get(..self.whole_steps)?.iter().flatten());
        let step = chain.steps().get(self.whole_steps).map_or(&[][..], Vec::as_slice);
        let torn = self.torn.iter().map(|&chunk| step.get(chunk).copied()).collect::<Option<Vec<_>>>()?;
        let before = survivors.len();
        survivors.extend(legal_part(step, |chunk| chunk.is_among(&torn)));
        (survivors.len() - before == torn.len()).then_some(())
    }
}

impl Kept {
    fn parse(text: &str) -> Option<Self> {
        let Some((chain, part)) = text.split_once(':') else {
            return Some(Self { chain: text.parse().ok()?, part: None });
        };
        let (whole_steps, bits) = part.split_once('.').unwrap_or((part, ""));
        let mut torn = Vec::new();
        for (digit, character) in bits.chars().rev().enumerate() {
            let value = character.to_digit(16)?;
            torn.extend((0..4).filter(|bit| value >> bit & 1 == 1).map(|bit| digit * 4 + bit));
        }
        let part = Some(Part { whole_steps: whole_steps.parse().ok()?, torn });
        Some(Self { chain: chain.parse().ok()?, part })
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.chain)?;
        let Some(Part { whole_steps, torn }) = &self.part else {
            return Ok(());
        };
        write!(f, ":{whole_steps}")?;
        let Some(last) = torn.last() else {
            return Ok(());
        };
        f.write_str(".")?;
        for digit in (0..=last / 4).rev() {
            let bits = torn
                .iter()
                .filter(|&&chunk| chunk / 4 == digit)
                .fold(0, |bits, chunk| bits | 1 << (chunk % 4));
            write!(f, "{bits:x}")?;
        }
        Ok(())
    }
}

impl ReplayId {
    /// The name in [`REPLAY_VARIABLE`], unless that is empty.
    ///
    /// # Panics
    /// When it does not name a crash: the user wants neither to explore everything nor to explore nothing.
    pub(crate) fn of_environment() -> Option<Self> {
        let name = env::var(REPLAY_VARIABLE).ok().filter(|name| !name.is_empty())?;
        let id = Self::parse(&name);
        assert!(id.is_some(), "{REPLAY_VARIABLE}={name:?} names no crash");
        id
    }

    /// Reads the output of [`Display`](fmt::Display); `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (model, rest) = text.split_once(':')?;
        let (mark, path) = rest.split_once(':')?;
        let model = Model::ALL.into_iter().find(|known| known.name() == model)?;
        let steps: Vec<&str> = path.split('/').collect();
        let kills = steps.iter().map_while(|step| step.strip_suffix('!'));
        let kills = kills.map(|position| position.parse().ok()).collect::<Option<Vec<usize>>>()?;
        let crashes = steps[kills.len()..].iter().map(|step| ReplayCrash::parse(step));
        let crashes = crashes.collect::<Option<_>>()?;
        Some(Self { model, mark: u32::from_str_radix(mark, 16).ok()?, kills, crashes })
    }
}

impl fmt::Display for ReplayCrash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.position, if self.others_kept { '-' } else { '+' })?;
        for (number, kept) in self.exceptions.iter().enumerate() {
            write!(f, "{}{kept}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for ReplayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:08x}:", self.model, self.mark)?;
        let kills = self.kills.iter().map(|position| format!("{position}!"));
        let steps: Vec<String> = kills.chain(self.crashes.iter().map(ReplayCrash::to_string)).collect();
        f.write_str(&steps.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_roundtrip() {
        for text in [
            "px86-line:00000000:3+",
            "chunk8:ffffffff:0-/12+0,3:2.5,17:0.a01",
            "page:0000002a:1-4:1",
            "px86-line:00000000:3!",
            "px86-line:00000000:3!/9!/12+0/3-",
        ] {
            assert_eq!(ReplayId::parse(text).map(|id| id.to_string()).as_deref(), Some(text));
        }
        let wrong = [
            "",
            "px86-line:0:",
            "px86-line:0:3",
            "z80:0:3+1",
            "page:-1:3+1",
            "page:0:3+1/",
            "page:0:3+1:x",
            "page:0:!",
            "page:0:3+/3!",
            "page:0:x!/3+",
        ];
        for text in wrong {
            assert_eq!(ReplayId::parse(text), None, "{text}");
        }
    }
}
