package plan

// Kind names the fault.
func (Cut) Kind() string { return "cut" }

// Class is network.
func (Cut) Class() Class { return ClassNetwork }

// On names no node.
func (Cut) On() string { return "" }

// Kind names the fault.
func (Noise) Kind() string { return "noise" }

// Class is network.
func (Noise) Class() Class { return ClassNetwork }

// On names no node.
func (Noise) On() string { return "" }

// Kind names the fault.
func (Hold) Kind() string { return "hold" }

// Class is network.
func (Hold) Class() Class { return ClassNetwork }

// On names no node.
func (Hold) On() string { return "" }

// Kind names the fault.
func (View) Kind() string { return "view" }

// Class is network.
func (View) Class() Class { return ClassNetwork }

// On is its node.
func (f View) On() string { return f.Node }

// Kind names the fault.
func (Flap) Kind() string { return "flap" }

// Class is network.
func (Flap) Class() Class { return ClassNetwork }

// On is its node.
func (f Flap) On() string { return f.Node }

// Kind names the fault.
func (Namesake) Kind() string { return "namesake" }

// Class is node.
func (Namesake) Class() Class { return ClassNode }

// On is its node.
func (f Namesake) On() string { return f.Node }

// Kind names the fault.
func (DoubledTell) Kind() string { return "doubled_tell" }

// Class is network.
func (DoubledTell) Class() Class { return ClassNetwork }

// On names no node.
func (DoubledTell) On() string { return "" }

// Kind names the fault.
func (Crash) Kind() string { return "crash" }

// Class is node.
func (Crash) Class() Class { return ClassNode }

// On is its node.
func (f Crash) On() string { return f.Node }

// Kind names the fault.
func (Restart) Kind() string { return "restart" }

// Class is node.
func (Restart) Class() Class { return ClassNode }

// On is its node.
func (f Restart) On() string { return f.Node }

// Kind names the fault.
func (Reboot) Kind() string { return "reboot" }

// Class is node.
func (Reboot) Class() Class { return ClassNode }

// On is its node.
func (f Reboot) On() string { return f.Node }

// Kind names the fault.
func (Pause) Kind() string { return "pause" }

// Class is node.
func (Pause) Class() Class { return ClassNode }

// On is its node.
func (f Pause) On() string { return f.Node }

// Kind names the fault.
func (Panic) Kind() string { return "panic" }

// Class is node.
func (Panic) Class() Class { return ClassNode }

// On is its node.
func (f Panic) On() string { return f.Node }

// Kind names the fault.
func (DiskStall) Kind() string { return "disk_stall" }

// Class is node.
func (DiskStall) Class() Class { return ClassNode }

// On is its node.
func (f DiskStall) On() string { return f.Node }

// Kind names the fault.
func (DiskFull) Kind() string { return "disk_full" }

// Class is node.
func (DiskFull) Class() Class { return ClassNode }

// On is its node.
func (f DiskFull) On() string { return f.Node }

// Kind names the fault.
func (DiskSwap) Kind() string { return "disk_swap" }

// Class is node.
func (DiskSwap) Class() Class { return ClassNode }

// On is its node.
func (f DiskSwap) On() string { return f.Node }

// Kind names the fault.
func (DiskRevert) Kind() string { return "disk_revert" }

// Class is node.
func (DiskRevert) Class() Class { return ClassNode }

// On is its node.
func (f DiskRevert) On() string { return f.Node }

// Kind names the fault.
func (DiskTorn) Kind() string { return "disk_torn" }

// Class is node.
func (DiskTorn) Class() Class { return ClassNode }

// On is its node.
func (f DiskTorn) On() string { return f.Node }

// Kind names the fault.
func (DiskLoss) Kind() string { return "disk_loss" }

// Class is node.
func (DiskLoss) Class() Class { return ClassNode }

// On is its node.
func (f DiskLoss) On() string { return f.Node }

// Kind names the fault.
func (WallStep) Kind() string { return "wall_step" }

// Class is clock.
func (WallStep) Class() Class { return ClassClock }

// On is its node.
func (f WallStep) On() string { return f.Node }

// Kind names the fault.
func (Drift) Kind() string { return "drift" }

// Class is clock.
func (Drift) Class() Class { return ClassClock }

// On is its node.
func (f Drift) On() string { return f.Node }

// Kind names the fault.
func (StoreAway) Kind() string { return "store_away" }

// Class is store.
func (StoreAway) Class() Class { return ClassStore }

// On is its node.
func (f StoreAway) On() string { return f.Node }

// Kind names the fault.
func (WatchLag) Kind() string { return "watch_lag" }

// Class is store.
func (WatchLag) Class() Class { return ClassStore }

// On is its node.
func (f WatchLag) On() string { return f.Node }

// Kind names the fault.
func (Unknown) Kind() string { return "unknown" }

// Class is store.
func (Unknown) Class() Class { return ClassStore }

// On is its node.
func (f Unknown) On() string { return f.Node }

// Kind names the fault.
func (LeaderPause) Kind() string { return "leader_pause" }

// Class is store.
func (LeaderPause) Class() Class { return ClassStore }

// On names no node.
func (LeaderPause) On() string { return "" }

// Kind names the fault.
func (LeaderChange) Kind() string { return "leader_change" }

// Class is store.
func (LeaderChange) Class() Class { return ClassStore }

// On names no node.
func (LeaderChange) On() string { return "" }

// Kind names the fault.
func (MemberCut) Kind() string { return "member_cut" }

// Class is store.
func (MemberCut) Class() Class { return ClassStore }

// On names no node.
func (MemberCut) On() string { return "" }

// Kind names the fault.
func (KeyRemoved) Kind() string { return "key_removed" }

// Class is store.
func (KeyRemoved) Class() Class { return ClassStore }

// On is its node.
func (f KeyRemoved) On() string { return f.Node }

// Kind names the fault.
func (LeaseDropped) Kind() string { return "lease_dropped" }

// Class is store.
func (LeaseDropped) Class() Class { return ClassStore }

// On is its node.
func (f LeaseDropped) On() string { return f.Node }

// Kind names the fault.
func (LeaseRevoked) Kind() string { return "lease_revoked" }

// Class is store.
func (LeaseRevoked) Class() Class { return ClassStore }

// On is its node.
func (f LeaseRevoked) On() string { return f.Node }

// Kind names the fault.
func (Compaction) Kind() string { return "compaction" }

// Class is store.
func (Compaction) Class() Class { return ClassStore }

// On names no node.
func (Compaction) On() string { return "" }

// Kind names the fault.
func (StoreRefuses) Kind() string { return "store_refuses" }

// Class is store.
func (StoreRefuses) Class() Class { return ClassStore }

// On names no node.
func (StoreRefuses) On() string { return "" }

// Kind names the fault.
func (StoreRestored) Kind() string { return "store_restored" }

// Class is store.
func (StoreRestored) Class() Class { return ClassStore }

// On names no node.
func (StoreRestored) On() string { return "" }

// Kind names the fault.
func (SlowCreate) Kind() string { return "slow_create" }

// Class is sandbox.
func (SlowCreate) Class() Class { return ClassSandbox }

// On is its node.
func (f SlowCreate) On() string { return f.Node }

// Kind names the fault.
func (FailedStart) Kind() string { return "failed_start" }

// Class is sandbox.
func (FailedStart) Class() Class { return ClassSandbox }

// On is its node.
func (f FailedStart) On() string { return f.Node }

// Kind names the fault.
func (LateExit) Kind() string { return "late_exit" }

// Class is sandbox.
func (LateExit) Class() Class { return ClassSandbox }

// On is its node.
func (f LateExit) On() string { return f.Node }

// Kind names the fault.
func (DoubledExit) Kind() string { return "doubled_exit" }

// Class is sandbox.
func (DoubledExit) Class() Class { return ClassSandbox }

// On is its node.
func (f DoubledExit) On() string { return f.Node }

// Kind names the fault.
func (ShimDeath) Kind() string { return "shim_death" }

// Class is sandbox.
func (ShimDeath) Class() Class { return ClassSandbox }

// On is its node.
func (f ShimDeath) On() string { return f.Node }

// Kind names the fault.
func (Vanish) Kind() string { return "vanish" }

// Class is sandbox.
func (Vanish) Class() Class { return ClassSandbox }

// On is its node.
func (f Vanish) On() string { return f.Node }

// Kind names the fault.
func (SlowKill) Kind() string { return "slow_kill" }

// Class is sandbox.
func (SlowKill) Class() Class { return ClassSandbox }

// On is its node.
func (f SlowKill) On() string { return f.Node }

// Kind names the fault.
func (GuardDeath) Kind() string { return "guard_death" }

// Class is sandbox.
func (GuardDeath) Class() Class { return ClassSandbox }

// On is its node.
func (f GuardDeath) On() string { return f.Node }

// Kind names the fault.
func (LogDeath) Kind() string { return "log_death" }

// Class is sandbox.
func (LogDeath) Class() Class { return ClassSandbox }

// On is its node.
func (f LogDeath) On() string { return f.Node }

// Kind names the fault.
func (Selected) Kind() string { return "selected" }

// Class is network.
func (Selected) Class() Class { return ClassNetwork }

// On names no node.
func (Selected) On() string { return "" }

// Kind names the fault.
func (DiskErrors) Kind() string { return "disk_errors" }

// Class is node.
func (DiskErrors) Class() Class { return ClassNode }

// On is its node.
func (f DiskErrors) On() string { return f.Node }

// Kind names the fault.
func (Flaky) Kind() string { return "flaky" }

// Class is sandbox.
func (Flaky) Class() Class { return ClassSandbox }

// On is its node.
func (f Flaky) On() string { return f.Node }

// Kind names the fault.
func (RuntimeAway) Kind() string { return "runtime_away" }

// Class is sandbox.
func (RuntimeAway) Class() Class { return ClassSandbox }

// On is its node.
func (f RuntimeAway) On() string { return f.Node }

// Kind names the fault.
func (RegistryBusy) Kind() string { return "registry_busy" }

// Class is sandbox.
func (RegistryBusy) Class() Class { return ClassSandbox }

// On is its node.
func (f RegistryBusy) On() string { return f.Node }

// Kind names the fault.
func (NodeRemoved) Kind() string { return "node_removed" }

// Class is node.
func (NodeRemoved) Class() Class { return ClassNode }

// On is its node.
func (f NodeRemoved) On() string { return f.Node }
