//! Memory technologies, as TOML: how long accesses take, and what the connection to the processor adds.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The technologies of the evaluation.
const CATALOGUE: &str = include_str!("../../nvm/technologies.toml");

/// Ten times an hour in nanoseconds is far above any device's time, and far below what overflows in sums.
const LONGEST_NS: u64 = 36_000_000_000_000;

/// Why a list of technologies cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TechnologyError {
    /// It is not the TOML of technologies.
    #[error("{origin} is not a list of technologies: {source}")]
    Toml {
        /// The file.
        origin: String,
        /// What the parser found, with the line.
        source: Box<toml::de::Error>,
    },
    /// A value cannot be.
    #[error("{origin}: {technology}: {field} is {found}, expected {expected}")]
    Value {
        /// The file.
        origin: String,
        /// The technology's name.
        technology: String,
        /// The field's name.
        field: &'static str,
        /// The value.
        found: String,
        /// What can be.
        expected: &'static str,
    },
    /// Two technologies have one name.
    #[error("{origin}: two technologies are called {technology}")]
    Twice {
        /// The file.
        origin: String,
        /// The name.
        technology: String,
    },
    /// There is none of that name.
    #[error("there is no technology {name}; there are {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
}

/// How a technology is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attachment {
    /// As memory of the processor.
    MemoryBus,
    /// As memory behind CXL.
    Cxl,
    /// As a device on PCI Express.
    Pcie,
    /// As a device behind a SATA controller.
    Sata,
}

impl Attachment {
    /// Whether data moves in both directions at the same time.
    #[must_use]
    pub const fn has_two_directions(self) -> bool {
        match self {
            Self::Cxl | Self::Pcie => true,
            Self::MemoryBus | Self::Sata => false,
        }
    }
}

/// What moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovedBy {
    /// The processor's cores, which wait for it: at most as many requests as cores are in flight.
    Cores,
    /// The device.
    Dma,
}

/// A technology. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Technology {
    /// Its name in commands and reports.
    pub name: String,
    /// A short name.
    pub alias: Option<String>,
    /// Where the values come from, and which are assumed.
    pub source: String,
    /// How it is connected.
    pub attachment: Attachment,
    /// What moves the data.
    pub moved_by: MovedBy,
    /// Reading one row.
    pub read_ns: u64,
    /// Writing one row.
    pub write_ns: u64,
    /// A flush, once everything written before it is stored.
    pub flush_ns: u64,
    /// What is accessed at once, in bytes.
    pub row_bytes: u64,
    /// The rows that one request accesses at the same time.
    #[serde(default = "one")]
    pub overlap: u64,
    /// The parts of the device that access rows independently of each other.
    pub channels: u64,
    /// A longer request is spread over the channels in pieces of this length. Without it, a request is served by one channel.
    pub stripe_bytes: Option<u64>,
    /// The bandwidth of the connection, which all requests in one direction share, in megabytes (10^6) a second.
    pub read_mb_s: u64,
    /// The same for writes.
    pub write_mb_s: u64,
    /// The time for which each request occupies the connection besides its transfer.
    #[serde(default)]
    pub request_ns: u64,
    /// What each request takes besides: software, interrupts, the way to the device. Requests do not wait for each other here.
    pub fixed_ns: u64,
    /// The volatile cache in which writes are complete before they are stored, in bytes.
    #[serde(default)]
    pub write_cache_bytes: u64,
    /// Whether the cache survives power failures, so that a flush need not wait for what is in it.
    #[serde(default)]
    pub cache_is_durable: bool,
    /// The mean time to move a head, for each request that does not follow the one before it.
    #[serde(default)]
    pub seek_ns: u64,
    /// One rotation, half of which such a request waits for.
    #[serde(default)]
    pub rotation_ns: u64,
}

const fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    technology: Vec<Technology>,
}

/// Technologies by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Technologies(Vec<Technology>);

impl Technologies {
    /// Those of the evaluation.
    ///
    /// # Panics
    /// Never: a test parses them.
    #[must_use]
    pub fn built_in() -> Self {
        Self::parse("technologies.toml", CATALOGUE).expect("a test parses the file that is compiled in")
    }

    /// Parses TOML. `origin` names it in errors.
    pub fn parse(origin: &str, text: &str) -> Result<Self, TechnologyError> {
        let file: File = toml::from_str(text).map_err(|source| TechnologyError::Toml {
            origin: origin.to_owned(),
            source: Box::new(source),
        })?;
        let mut names = HashSet::new();
        for technology in &file.technology {
            technology.check(origin)?;
            if let Some(twice) = technology.names().find(|name| !names.insert(*name)) {
                let technology = twice.to_owned();
                return Err(TechnologyError::Twice { origin: origin.to_owned(), technology });
            }
        }
        Ok(Self(file.technology))
    }

    /// Adds others. One with a name that is there already replaces it.
    pub fn extend(&mut self, others: Self) {
        for own in &mut self.0 {
            // A short name is the newest one's.
            let is_taken =
                |alias: &String| others.0.iter().flat_map(Technology::names).any(|name| name == alias);
            own.alias = own.alias.take().filter(|alias| !is_taken(alias));
        }
        self.0.retain(|own| !others.0.iter().any(|other| other.name == own.name));
        self.0.extend(others.0);
    }

    /// The technology of this name.
    pub fn get(&self, name: &str) -> Result<&Technology, TechnologyError> {
        let is_named = |technology: &&Technology| technology.has_name(name);
        self.0.iter().find(is_named).ok_or_else(|| TechnologyError::Unknown {
            name: name.to_owned(),
            known: self.0.iter().map(|technology| technology.name.clone()).collect(),
        })
    }

    /// All, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Technology> {
        self.0.iter()
    }
}

impl Technology {
    /// This technology with another latency of its rows, as Figs 6 and 7 vary it.
    #[must_use]
    pub fn with_latency(&self, ns: u64) -> Self {
        Self { read_ns: ns, write_ns: ns, ..self.clone() }
    }

    /// Whether this is its name or its short name.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// Its name, and its short name if it has one.
    fn names(&self) -> impl Iterator<Item = &str> {
        [Some(&self.name), self.alias.as_ref()].into_iter().flatten().map(String::as_str)
    }

    /// Values that a device cannot have, before any of them divides or overflows.
    fn check(&self, origin: &str) -> Result<(), TechnologyError> {
        let wrong = |field, found: String, expected| {
            let (origin, technology) = (origin.to_owned(), self.name.clone());
            Err(TechnologyError::Value { origin, technology, field, found, expected })
        };
        let in_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if let Some(name) = self.names().find(|name| name.is_empty() || !name.bytes().all(in_name)) {
            return wrong("name", format!("{name:?}"), "lower case letters, digits and hyphens");
        }
        if self.source.trim().is_empty() {
            return wrong("source", "empty".into(), "where the values come from");
        }
        let times = [
            ("read_ns", self.read_ns),
            ("write_ns", self.write_ns),
            ("flush_ns", self.flush_ns),
            ("request_ns", self.request_ns),
            ("fixed_ns", self.fixed_ns),
            ("seek_ns", self.seek_ns),
            ("rotation_ns", self.rotation_ns),
        ];
        if let Some((field, ns)) = times.into_iter().find(|(_, ns)| *ns > LONGEST_NS) {
            return wrong(field, ns.to_string(), "at most ten hours");
        }
        let counts = [
            ("row_bytes", self.row_bytes),
            ("overlap", self.overlap),
            ("channels", self.channels),
            ("stripe_bytes", self.stripe_bytes.unwrap_or(1)),
            ("read_mb_s", self.read_mb_s),
            ("write_mb_s", self.write_mb_s),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return wrong(field, "0".into(), "at least 1");
        }
        if self.channels > 65_536 {
            return wrong("channels", self.channels.to_string(), "at most 65536");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"
        [[technology]]
        name = "flash"
        source = "a datasheet"
        attachment = "sata"
        moved_by = "dma"
        read_ns = 25_000
        write_ns = 200_000
        flush_ns = 0
        row_bytes = 4096
        channels = 8
        read_mb_s = 250
        write_mb_s = 170
        fixed_ns = 0
    "#;

    fn error_of(from: &str, to: &str) -> String {
        let text = ONE.replace(from, to);
        assert_ne!(text, ONE, "{from} is not in the text");
        Technologies::parse("mine.toml", &text).unwrap_err().to_string()
    }

    #[test]
    fn catalogue_is_valid_and_has_the_paper_s_and_today_s() {
        let all = Technologies::built_in();
        for name in
            ["ddr-pcm", "haste-sttm", "fusion-io", "x25e-raid", "disk-raid", "optane-dimm", "nvme-tlc"]
        {
            assert_eq!(all.get(name).unwrap().name, name);
        }
        let pcm = all.get("ddr-pcm").unwrap();
        assert_eq!((pcm.read_ns, pcm.write_ns), (68, 215), "67.5 ns and 215 ns of Table I");
    }

    #[test]
    fn values_that_cannot_be_are_typed_errors() {
        assert!(
            error_of("channels = 8", "channels = 0").contains("flash: channels is 0, expected at least 1")
        );
        assert!(error_of("row_bytes = 4096", "row_bytes = 0").contains("row_bytes"));
        assert!(error_of("read_mb_s = 250", "read_mb_s = 0").contains("read_mb_s"));
        assert!(error_of("25_000", "9_000_000_000_000_000_000").contains("read_ns"));
        assert!(error_of("channels = 8", "channels = 70_000").contains("at most 65536"));
        assert!(error_of("\"a datasheet\"", "\" \"").contains("source"));
        assert!(error_of("\"flash\"", "\"fl ash\"").contains("name"));
    }

    #[test]
    fn bad_toml_names_file_and_line() {
        for (from, to) in [
            ("channels = 8", "channels = -1"),
            ("channels = 8", ""),
            ("channels = 8", "channels = 8\nchanels = 9"),
            ("\"sata\"", "\"scsi\""),
            ("[[technology]]", "[technology"),
        ] {
            let error = error_of(from, to);
            assert!(error.contains("mine.toml is not a list of technologies"), "{error}");
            assert!(error.contains("line"), "{error}");
        }
    }

    #[test]
    fn names_are_unique_and_unknown_ones_are_errors() {
        let twice = format!("{ONE}{ONE}");
        assert!(Technologies::parse("", &twice).unwrap_err().to_string().contains("two technologies"));
        let mut all = Technologies::built_in();
        let count = all.iter().count();
        let mine = Technologies::parse("", &ONE.replace("\"flash\"", "\"disk-raid\"")).unwrap();
        all.extend(mine);
        assert_eq!(all.iter().count(), count, "replaced, not added");
        assert_eq!(all.get("disk-raid").unwrap().read_ns, 25_000);
        assert_eq!(all.get("pcm").unwrap().name, "ddr-pcm", "by its short name");
        let short = ONE.replace("name = \"flash\"", "name = \"new\"\nalias = \"pcm\"");
        assert!(
            Technologies::parse("", &short.replace("\"pcm\"", "\"new\"")).is_err(),
            "one name for two things"
        );
        all.extend(Technologies::parse("", &short).unwrap());
        assert_eq!(all.get("pcm").unwrap().name, "new");
        assert_eq!(all.get("ddr-pcm").unwrap().alias, None);
        let error = all.get("core").unwrap_err().to_string();
        assert!(error.contains("no technology core") && error.contains("ddr-pcm"), "{error}");
    }
}
