//! The command line of `deckle setup` and `deckle pages`.

use std::path::PathBuf;

use clap::Args;

const HELP: &str = "\
What it does, each step only where it is needed:
  group     makes the group `deckle`
  rule      writes /etc/udev/rules.d/60-deckle.rules, unless a package has brought that rule
  device    gives /dev/userfaultfd to the group, mode 0660, now
  users     puts those of --user into the group; they log in again

Who is in the group may serve page faults that happen inside the kernel, as root may: that is
all that `deckle run` needs, and no sysctl. --remove takes all of it back.

Examples:
  sudo deckle setup --user alice
  deckle setup --dry-run
  deckle setup --cdi | sudo tee /etc/cdi/deckle.json
      Containers then get all they need: docker run --device deckle.dev/pager=all IMAGE
  deckle setup --seccomp default.json >deckle.json
      The profile of your container engine, and what deckle needs where it has no device";

/// Options of `deckle setup`.
#[derive(Args)]
#[command(after_help = HELP)]
pub struct SetupArgs {
    /// A user who shall be in the group. Can be repeated.
    #[arg(long, value_name = "NAME")]
    pub user: Vec<String>,
    /// Only say what would be done; needs no root.
    #[arg(long)]
    pub dry_run: bool,
    /// Take it back: the device is root's alone again, rule and group go.
    #[arg(long, conflicts_with = "user")]
    pub remove: bool,
    /// Print the CDI file that gives this deckle and the device to a container.
    #[arg(long, conflicts_with_all = ["user", "dry_run", "remove", "seccomp"])]
    pub cdi: bool,
    /// Print this seccomp profile of a container engine with what deckle needs added.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "dry_run", "remove"])]
    pub seccomp: Option<PathBuf>,
}

/// Options of `deckle pages`.
#[derive(Args)]
pub struct PagesArgs {
    /// As /usr/share: pages go to man/man1 below it, completions to where each shell looks.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
