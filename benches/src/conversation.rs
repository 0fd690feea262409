//! Programs under measurement that are told when to work, and answer what they have done.

use miette::{IntoDiagnostic as _, Result, WrapErr as _, ensure, miette};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program that writes `ready`, then answers each line of its input with a line, and at the end of the input checks its data and writes `exact`.
/// It is killed when dropped.
#[derive(Debug)]
pub struct Conversation {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    name: String,
}

impl Conversation {
    /// Starts `command`, and waits until it is ready.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.into_diagnostic().wrap_err_with(|| format!("cannot run {name}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| miette!("the output of {name} is not piped"))?;
        let mut conversation = Self { child, input, output: BufReader::new(output), name };
        conversation.expect("ready")?;
        Ok(conversation)
    }

    /// Writes a line, and returns the numbers of the answer.
    pub fn ask<const N: usize>(&mut self, line: &str) -> Result<[f64; N]> {
        let input = self.input.as_mut().ok_or_else(|| miette!("{} has ended", self.name))?;
        // If it has ended, its status says more than that the pipe is broken.
        writeln!(input, "{line}").ok();
        let answer = self.line()?;
        let numbers: Vec<f64> = answer.split(' ').filter_map(|number| number.parse().ok()).collect();
        numbers.try_into().map_err(|_| miette!("{} answered {answer:?} to {line:?}", self.name))
    }

    /// Ends it, after it has checked its data.
    pub fn finish(mut self) -> Result<()> {
        drop(self.input.take());
        self.expect("exact")
    }

    fn expect(&mut self, expected: &str) -> Result<()> {
        let line = self.line()?;
        ensure!(line == expected, "{} wrote {line:?}, not {expected:?}", self.name);
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line).into_diagnostic()? == 0 {
            let status = self.child.wait().into_diagnostic()?;
            return Err(miette!("{} ended early: {status}", self.name));
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("{} could not be ended: {error}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Conversation> {
        Conversation::start(Command::new("sh").arg("-c").arg(script))
    }

    #[test]
    fn lines_are_answered_and_the_end_is_checked() {
        let mut program =
            shell("echo ready; while read a b; do echo $((a + b)) 2.5; done; echo exact").unwrap();
        assert_eq!(program.ask::<2>("1 2").unwrap(), [3.0, 2.5]);
        assert_eq!(program.ask::<2>("40 2").unwrap(), [42.0, 2.5]);
        program.finish().unwrap();
    }

    #[test]
    fn wrong_answers_and_early_ends_are_errors() {
        assert!(shell("echo no").unwrap_err().to_string().contains("\"no\""));
        assert!(shell("exit 3").unwrap_err().to_string().contains("ended early: exit status: 3"));
        let mut program = shell("echo ready; read line; echo 1; read line; kill -9 $$").unwrap();
        assert!(program.ask::<2>("x").unwrap_err().to_string().contains("answered \"1\""));
        assert!(program.ask::<1>("x").unwrap_err().to_string().contains("signal: 9"));
        assert!(shell("echo ready; cat >/dev/null; echo lost").unwrap().finish().is_err());
    }
}
