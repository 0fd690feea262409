//! Faults, one after the other, while clients work.

use super::clients::Workload;
use super::cluster::{Cluster, wait_for};
use super::network::Network;
use fastrand::Rng;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

/// What goes wrong. The leader is that of the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// kill -9.
    KillLeader,
    /// kill -9, and started again before the others miss it.
    RestartLeader,
    KillFollower,
    /// Again while it receives what it has missed.
    KillFollowerTwice,
    /// The leader, and the one after it as soon as there is one.
    KillTwoLeaders,
    KillAll,
    /// SIGTERM.
    EndLeader,
    EndFollower,
    /// SIGSTOP, and SIGCONT after a while.
    StopLeader,
    StopFollower,
    /// No bytes to and from a node.
    CutLeader,
    CutFollower,
    /// No bytes in one direction.
    MuteLeader,
    DeafLeader,
    MuteFollower,
    /// No bytes between the leader and one follower, which the other follower reaches.
    CutOneLink,
    /// All bytes are late.
    Delay,
    /// A member is removed, and added again.
    RemoveFollower,
    RemoveLeader,
}

/// The faults, as often as they are tried in a round.
const ROUND: [Fault; 27] = [
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::RestartLeader,
    Fault::RestartLeader,
    Fault::KillTwoLeaders,
    Fault::KillTwoLeaders,
    Fault::KillFollower,
    Fault::KillFollowerTwice,
    Fault::KillFollowerTwice,
    Fault::KillAll,
    Fault::EndLeader,
    Fault::EndFollower,
    Fault::StopLeader,
    Fault::StopLeader,
    Fault::StopFollower,
    Fault::CutLeader,
    Fault::CutLeader,
    Fault::CutFollower,
    Fault::MuteFollower,
    Fault::MuteLeader,
    Fault::DeafLeader,
    Fault::CutOneLink,
    Fault::Delay,
    Fault::RemoveFollower,
    Fault::RemoveLeader,
];

/// The longest time that a fault lasts, in milliseconds.
const LASTS_MS: u64 = 2500;

/// The longest time that a node has to receive what it has missed, in milliseconds.
const CATCHES_UP_MS: u64 = 100;

/// What has happened.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// How often there was each fault.
    pub(crate) faults: BTreeMap<Fault, u32>,
    /// The number of leaders killed.
    pub(crate) deaths: u32,
    /// When a majority was without a leader, or began to come back, in the time of the history.
    pub(crate) losses: BTreeMap<&'static str, Vec<u64>>,
}

/// How a leader was lost.
const KILLED: &str = "leader killed";
const AWAY: &str = "leader ended, stopped or cut off";
const NO_MAJORITY: &str = "majority killed, from the start of the first node";

/// Makes faults.
pub(crate) struct Nemesis<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) network: &'a Network,
    pub(crate) workload: &'a Workload,
    pub(crate) rng: Rng,
    pub(crate) events: Events,
    /// The node that is no member now.
    pub(crate) removed: Option<usize>,
}

impl Nemesis<'_> {
    /// Makes faults until clients have made so many operations, of which each fault has a share.
    pub(crate) fn run(&mut self, operations: u64, share: u64) {
        let mut round = Vec::new();
        while self.workload.done() < operations {
            if round.is_empty() {
                round = ROUND.to_vec();
                self.rng.shuffle(&mut round);
            }
            let Some(fault) = round.pop() else { continue };
            self.step(fault, share);
        }
    }

    /// One fault: with operations before it, during it, and after it.
    fn step(&mut self, fault: Fault, share: u64) {
        let part = share / 3;
        let granted = self.workload.grant(part);
        // Amid operations.
        let from = granted - self.rng.u64(1..=part);
        wait_for(|| (self.workload.done() >= from).then_some(()));
        self.workload.grant(part);
        *self.events.faults.entry(fault).or_default() += 1;
        let leader = self.cluster.leader();
        self.begin(fault, leader);
        self.pause();
        if matches!(fault, Fault::KillTwoLeaders | Fault::KillAll) {
            self.lost(NO_MAJORITY);
        }
        self.heal();
        let granted = self.workload.grant(part);
        wait_for(|| (self.workload.done() >= granted).then_some(()));
    }

    fn pause(&mut self) {
        thread::sleep(Duration::from_millis(self.rng.u64(..LASTS_MS)));
    }

    fn begin(&mut self, fault: Fault, leader: usize) {
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        let follower = others[self.rng.usize(..2)];
        match fault {
            Fault::KillLeader => {
                self.kill_leader(leader);
                self.lost(KILLED);
            }
            Fault::RestartLeader => {
                self.kill_leader(leader);
                self.cluster.serve(leader);
            }
            Fault::KillFollower => self.cluster.kill(follower),
            Fault::KillFollowerTwice => {
                self.cluster.kill(follower);
                self.pause();
                self.cluster.serve(follower);
                thread::sleep(Duration::from_millis(self.rng.u64(..CATCHES_UP_MS)));
                self.cluster.kill(follower);
            }
            Fault::KillTwoLeaders => {
                self.kill_leader(leader);
                let next = self.cluster.leader();
                self.kill_leader(next);
            }
            Fault::KillAll => {
                self.kill_leader(leader);
                (0..3).for_each(|node| self.cluster.kill(node));
            }
            Fault::EndLeader => {
                self.cluster.terminate(leader);
                self.lost(AWAY);
            }
            Fault::EndFollower => self.cluster.terminate(follower),
            Fault::StopLeader => {
                self.cluster.signal(leader, Signal::STOP);
                self.lost(AWAY);
            }
            Fault::StopFollower => self.cluster.signal(follower, Signal::STOP),
            Fault::CutLeader => {
                for other in others {
                    self.cut(leader, other, [true, true]);
                }
                self.lost(AWAY);
            }
            Fault::CutFollower => {
                for other in (0..3).filter(|other| *other != follower) {
                    self.cut(follower, other, [true, true]);
                }
            }
            Fault::MuteLeader | Fault::DeafLeader => {
                let is_mute = fault == Fault::MuteLeader;
                for other in others {
                    self.cut(leader, other, [is_mute, !is_mute]);
                }
                self.lost(AWAY);
            }
            Fault::MuteFollower => {
                for other in (0..3).filter(|other| *other != follower) {
                    self.cut(follower, other, [true, false]);
                }
            }
            Fault::RemoveFollower => self.remove(follower, leader),
            Fault::RemoveLeader => self.remove(leader, follower),
            Fault::CutOneLink => self.cut(leader, follower, [true, true]),
            Fault::Delay => {
                let most = self.rng.u64(1..150);
                self.network.delay(|| Duration::from_millis(self.rng.u64(..most)));
            }
        }
    }

    fn kill_leader(&mut self, leader: usize) {
        self.cluster.kill(leader);
        self.events.deaths += 1;
    }

    fn lost(&mut self, how: &'static str) {
        self.events.losses.entry(how).or_default().push(self.workload.now());
    }

    /// Removes a member, at another one.
    fn remove(&mut self, node: usize, at: usize) {
        let id = (node + 1).to_string();
        // The leader may change meanwhile. One that was removed before the answer came is no longer a member.
        wait_for(|| match self.cluster.manage(at, &["remove", &id]) {
            Err(error) if !error.contains("has no node") => None,
            _ => Some(()),
        });
        self.removed = Some(node);
    }

    /// Cuts what the first node sends, and what it receives. The connections last, as when packets are lost, or end.
    fn cut(&mut self, node: usize, other: usize, [sends, receives]: [bool; 2]) {
        if sends {
            self.network.cut(node, other);
        }
        if receives {
            self.network.cut(other, node);
        }
        if self.rng.bool() {
            self.network.reset(node, other);
        }
    }

    /// Ends every fault.
    fn heal(&mut self) {
        self.network.heal();
        for node in 0..3 {
            self.cluster.signal(node, Signal::CONT);
            if self.cluster.nodes[node].is_none() {
                self.cluster.serve(node);
            }
        }
        if let Some(node) = self.removed.take() {
            let address = format!("{}=127.0.0.1:{}", node + 1, self.cluster.peers[node]);
            wait_for(|| self.cluster.manage((node + 1) % 3, &["add", &address]).ok());
        }
    }
}
