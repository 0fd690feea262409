//! Programs outside this repository that use its crates: as git dependencies, and as installed commands. Nothing may need libclang, which neither rustup nor
//! a base system installs. Cargo ignores what the workspace says about sources of dependencies (`[patch]`) when a crate of it is a dependency.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;
use xtask::{cargo, process};

/// Packages that find libclang, or run it.
const OF_LIBCLANG: [&str; 2] = ["bindgen", "clang-sys"];

/// A repository with the files of this one, and a home and a target directory for cargo. All are kept, so that a second run builds what has changed.
struct Outside {
    repository: PathBuf,
    home: PathBuf,
    target: PathBuf,
}

static OUTSIDE: LazyLock<Outside> = LazyLock::new(Outside::new);

impl Outside {
    fn new() -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
        let part = |name| directory.join(name);
        let outside = Self { repository: part("repository"), home: part("home"), target: part("target") };
        outside.commit_files();
        outside.make_home();
        outside
    }

    /// Commits the files of the working tree, which need not be committed. The same files give the same commit.
    fn commit_files(&self) {
        let listed = git(cargo::root(), &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        if self.repository.exists() {
            fs::remove_dir_all(&self.repository).unwrap();
        }
        for name in listed.split('\0').filter(|name| !name.is_empty()) {
            let (from, to) = (cargo::root().join(name), self.repository.join(name));
            // A deleted file is listed until the deletion is committed.
            if from.exists() {
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(from, to).unwrap();
            }
        }
        git(&self.repository, &["init", "--quiet"]);
        git(&self.repository, &["add", "--all", "--force"]);
        git(&self.repository, &["commit", "--quiet", "--message", "The files"]);
    }

    /// A home of its own, because cargo keeps a copy of each git dependency there. It shares the registry's packages with the home of the user.
    fn make_home(&self) {
        let users = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let users = users.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).expect("a home");
        fs::create_dir_all(&self.home).unwrap();
        for name in ["registry", "config.toml", "credentials.toml"] {
            let link = self.home.join(name);
            if users.join(name).exists() && !link.exists() {
                std::os::unix::fs::symlink(users.join(name), link).unwrap();
            }
        }
    }

    fn url(&self) -> String {
        format!("file://{}", self.repository.display())
    }

    /// Runs cargo in `directory`, without libclang.
    fn cargo<S: AsRef<OsStr>>(&self, directory: &Path, arguments: &[S]) {
        self.cargo_with_target(&self.target, directory, arguments);
    }

    /// Runs cargo with another target directory.
    fn cargo_with_target<S: AsRef<OsStr>>(&self, target: &Path, directory: &Path, arguments: &[S]) {
        let mut command = cargo::command();
        command.args(arguments).current_dir(directory);
        command.env("CARGO_HOME", &self.home).env("CARGO_TARGET_DIR", target);
        command.env("LIBCLANG_PATH", "/nowhere");
        // Nothing of it runs for long.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
        process::output(&mut command).unwrap();
    }
}

/// Runs git with a fixed identity and date, and returns what it prints.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=outside", "-c", "user.email=outside@localhost"]);
    command.args(["-c", "commit.gpgSign=false", "-c", "core.hooksPath=/nowhere"]);
    command.args(arguments).current_dir(directory);
    for date in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
        command.env(date, "2000-01-01T00:00:00Z");
    }
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    process::output(&mut command).unwrap()
}

/// A package in `crates/`.
struct Package {
    name: String,
    /// Pairs of a kind and a name.
    targets: Vec<(String, String)>,
}

impl Package {
    /// The name of a target of this kind.
    fn target(&self, kind: &str) -> Option<&str> {
        self.targets.iter().find(|target| target.0 == kind).map(|target| target.1.as_str())
    }
}

fn packages() -> Vec<Package> {
    let mut command = cargo::command();
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(cargo::root());
    let metadata: Value = serde_json::from_str(&process::output(&mut command).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let ours = cargo::root().join("crates");
    let packages = metadata["packages"].as_array().unwrap().iter();
    let packages = packages.filter(|package| Path::new(&text(&package["manifest_path"])).starts_with(&ours));
    let packages = packages.map(|package| Package {
        name: text(&package["name"]),
        targets: package["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|target| (text(&target["kind"][0]), text(&target["name"])))
            .collect(),
    });
    packages.collect()
}

/// Asserts that a lock file has a package of this repository, and none that needs libclang.
fn assert_locked(lock: &Path, package: &str) {
    let text = fs::read_to_string(lock).unwrap();
    let has = |name: &str| text.lines().any(|line| line == format!("name = \"{name}\""));
    assert!(has(package), "{package} is not in {}", lock.display());
    for name in OF_LIBCLANG {
        assert!(!has(name), "{package} depends on {name}, which needs libclang");
    }
}

/// A new package in `directory` that depends on `package`, by `cargo add --git`.
fn project(directory: &Path, package: &str, code: &str) {
    fs::create_dir_all(directory.join("src")).unwrap();
    let manifest = format!("[package]\nname = \"uses-{package}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n");
    fs::write(directory.join("Cargo.toml"), manifest).unwrap();
    fs::write(directory.join("src/lib.rs"), code).unwrap();
    // The versions that the tests of this repository run with; cargo removes what the package does not need.
    fs::copy(cargo::root().join("Cargo.lock"), directory.join("Cargo.lock")).unwrap();
    OUTSIDE.cargo(directory, &["add", "--quiet", "--git", &OUTSIDE.url(), package]);
}

#[test]
fn libraries_are_git_dependencies_without_libclang() {
    let directory = TempDir::new().unwrap();
    let mut built = Vec::new();
    for package in packages() {
        let code = match (package.target("lib").or(package.target("proc-macro")), package.target("cdylib")) {
            (Some(library), _) => format!("pub use {library} as used;\n"),
            // It is built, but has nothing to be used.
            (None, Some(_)) => String::new(),
            (None, None) => continue,
        };
        let directory = directory.path().join(&package.name);
        project(&directory, &package.name, &code);
        OUTSIDE.cargo(&directory, &["build", "--quiet"]);
        assert_locked(&directory.join("Cargo.lock"), &package.name);
        built.push(package.name);
    }
    assert!(built.len() > 8 && built.iter().any(|name| name == "pmbd-ublk"), "{built:?}");
}

#[test]
fn commands_are_installed_from_git_without_libclang() {
    let directory = TempDir::new().unwrap();
    let (mut names, mut programs) = (Vec::new(), Vec::new());
    for package in packages() {
        let Some(program) = package.target("bin") else { continue };
        programs.push(program.to_owned());
        // Cargo does not build a dependency without a library, but it locks what that needs.
        let project_directory = directory.path().join(&package.name);
        project(&project_directory, &package.name, "");
        OUTSIDE.cargo(&project_directory, &["metadata", "--quiet", "--format-version", "1"]);
        assert_locked(&project_directory.join("Cargo.lock"), &package.name);
        names.push(package.name);
    }
    assert!(names.len() > 3 && names.iter().any(|name| name == "pmbd-ublk"), "{names:?}");
    let (url, root) = (OUTSIDE.url(), directory.path().join("installed"));
    let mut arguments = vec!["install", "--quiet", "--debug", "--locked", "--git", &url];
    arguments.extend(["--root", root.to_str().unwrap()]);
    arguments.extend(names.iter().map(String::as_str));
    // `cargo install` takes what it has built of another commit for up to date.
    let target = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    OUTSIDE.cargo_with_target(target.path(), directory.path(), &arguments);
    for program in programs {
        process::output(Command::new(root.join("bin").join(program)).arg("--version")).unwrap();
    }
}
