// SPDX-License-Identifier: BSD-3-Clause
// Location of flight records when other users have created entries in the
// temporary directory before.
#include <dtensor/comm/processes/flight_record_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/warnings_of.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace TEST_SOURCE {

using dtensor::detail::FlightRecord;
namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

std::string write_record() {
  FlightRecord record(2, 4, "oak", "blue");
  record.end(record.begin("tp", "all_reduce", 12));
  return record.write("no such row");
}

// Temporary directory that does not contain this user's record folder yet.
class FlightRecords : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("DTENSOR_FLIGHT_RECORD");
    temporary_ = fs::path(::testing::TempDir()) /
        ("dtensor_records_" + std::to_string(getpid()));
    fs::create_directories(temporary_);
    setenv("TMPDIR", temporary_.c_str(), 1);
    usual_ = temporary_ / ("dtensor-flight-" + std::to_string(geteuid()));
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    unsetenv("DTENSOR_FLIGHT_RECORD");
    fs::remove_all(temporary_);
  }

  fs::path temporary_;
  fs::path usual_;
};

TEST_F(FlightRecords, AreForThisUserAlone) {
  const auto written = write_record();
  EXPECT_EQ(written, (usual_ / "blue.rank2.txt").string());
  EXPECT_EQ(mode_of(usual_), 0700U);
  EXPECT_EQ(mode_of(written), 0600U);
  EXPECT_EQ(mode_of(usual_ / "blue.rank2.json"), 0600U);
  EXPECT_THAT(content_of(written), HasSubstr("why: no such row"));
  EXPECT_THAT(
      content_of(usual_ / "blue.rank2.json"), HasSubstr("\"all_reduce\""));
}

TEST_F(FlightRecords, ReplaceRecordsOfAnEarlierFailure) {
  write_record();
  std::ofstream(usual_ / "blue.rank2.txt") << "old";
  const auto written = write_record();
  EXPECT_THAT(content_of(written), HasSubstr("why: no such row"));
}

TEST_F(FlightRecords, GoElsewhereIfOthersMayWriteInTheFolder) {
  fs::create_directory(usual_);
  for (const mode_t mode : {0777U, 0770U, 0702U}) {
    chmod(usual_.c_str(), mode);
    const auto written = write_record();
    EXPECT_THAT(written, StartsWith(usual_.string() + "-"));
    EXPECT_EQ(mode_of(fs::path(written).parent_path()), 0700U);
    EXPECT_THAT(content_of(written), HasSubstr("why: no such row"));
    EXPECT_TRUE(fs::is_empty(usual_));
  }
}

TEST_F(FlightRecords, GoElsewhereIfTheFolderIsALink) {
  const auto target = temporary_ / "target";
  fs::create_directory(target);
  fs::create_symlink(target, usual_);
  const auto written = write_record();
  EXPECT_THAT(written, StartsWith(usual_.string() + "-"));
  EXPECT_TRUE(fs::is_empty(target));
}

TEST_F(FlightRecords, GoElsewhereIfTheFolderIsAFile) {
  std::ofstream(usual_) << "mine";
  EXPECT_THAT(write_record(), StartsWith(usual_.string() + "-"));
  EXPECT_EQ(content_of(usual_), "mine");
}

TEST_F(FlightRecords, GoElsewhereIfTheFolderIsOfAnotherUser) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root, to give a folder away";
  }
  fs::create_directory(usual_);
  ASSERT_EQ(chown(usual_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(write_record(), StartsWith(usual_.string() + "-"));
  EXPECT_TRUE(fs::is_empty(usual_));
}

TEST_F(FlightRecords, FollowNoLink) {
  fs::create_directory(usual_);
  chmod(usual_.c_str(), 0700);
  const auto target = temporary_ / "precious";
  std::ofstream(target) << "precious";
  fs::create_symlink(target, usual_ / "blue.rank2.txt");
  fs::create_symlink(target, usual_ / "blue.rank2.json");
  const auto written = write_record();
  EXPECT_EQ(content_of(target), "precious");
  EXPECT_FALSE(fs::is_symlink(written));
  EXPECT_THAT(content_of(written), HasSubstr("why: no such row"));
}

TEST_F(FlightRecords, WaitForNoReaderOfAFifo) {
  fs::create_directory(usual_);
  chmod(usual_.c_str(), 0700);
  ASSERT_EQ(mkfifo((usual_ / "blue.rank2.txt").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((usual_ / "blue.rank2.json").c_str(), 0600), 0);
  const auto written = write_record();
  EXPECT_TRUE(fs::is_regular_file(written));
}

TEST_F(FlightRecords, GoToTheFolderThatIsNamed) {
  const auto folder = temporary_ / "a" / "b";
  setenv("DTENSOR_FLIGHT_RECORD", folder.c_str(), 1);
  const auto written = write_record();
  EXPECT_EQ(written, (folder / "blue.rank2.txt").string());
  // The user may share the folder, or name it by a link.
  chmod(folder.c_str(), 0777);
  fs::create_directory_symlink(folder, temporary_ / "link");
  setenv("DTENSOR_FLIGHT_RECORD", (temporary_ / "link").c_str(), 1);
  EXPECT_EQ(write_record(), (temporary_ / "link" / "blue.rank2.txt").string());
  EXPECT_FALSE(fs::exists(usual_));
}

TEST_F(FlightRecords, ThatCannotBeWrittenAreAWarning) {
  std::ofstream(temporary_ / "file") << "mine";
  for (const fs::path& folder : std::vector<fs::path>{
           temporary_ / "file", temporary_ / "file" / "below", "/dev/null"}) {
    setenv("DTENSOR_FLIGHT_RECORD", folder.c_str(), 1);
    std::string written = "not empty";
    dtensor::test_text::Warnings warnings;
    written = write_record();
    EXPECT_EQ(written, "");
    ASSERT_EQ(warnings.texts().size(), 1U);
    EXPECT_THAT(
        warnings.texts()[0],
        HasSubstr(
            "[flight record] cannot open the folder \"" + folder.string() +
            "\": "));
  }
}

// Handler of a program whose warnings are errors.
class ThrowingHandler final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    throw std::runtime_error(warning.msg());
  }
};

TEST_F(FlightRecords, ThatCannotBeWrittenHideNoErrorWhereWarningsThrow) {
  setenv("DTENSOR_FLIGHT_RECORD", "/dev/null", 1);
  ThrowingHandler handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  EXPECT_EQ(write_record(), "");
}

// Returns the warning of a record that cannot be written.
std::string warning_of_record() {
  const dtensor::test_text::Warnings warnings;
  EXPECT_EQ(write_record(), "");
  return warnings.texts().size() == 1 ? warnings.texts()[0] : "";
}

TEST_F(FlightRecords, NeedAFolderForFiles) {
  setenv("TMPDIR", "/proc", 1); // takes no folders, even from root
  EXPECT_THAT(
      warning_of_record(),
      MatchesRegex("\\[flight record\\] cannot make a folder "
                   "\"/proc/dtensor-flight-[0-9]+-[^\"]*\": No such file or "
                   "directory\\. Set DTENSOR_FLIGHT_RECORD to a folder that "
                   "this user can write, or to \"off\"\\..*"));
  setenv("DTENSOR_FLIGHT_RECORD", "/proc/self/task", 1);
  EXPECT_THAT(
      warning_of_record(),
      HasSubstr("[flight record] cannot make the file "
                "\"/proc/self/task/blue.rank2.json\": "));
}

TEST_F(FlightRecords, BeyondTheLimitOfAFileAreAWarning) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN); // as in every rank
    const rlimit limit{16, 16};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto text = warning_of_record();
    _exit(
        text.find("cannot write the file") < text.size() &&
                text.find("blue.rank2.json\": File too large. Set ") <
                    text.size()
            ? 0
            : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(FlightRecords, MayBeOff) {
  setenv("DTENSOR_FLIGHT_RECORD", "off", 1);
  EXPECT_EQ(write_record(), "");
  EXPECT_TRUE(fs::is_empty(temporary_));
}

TEST_F(FlightRecords, OfAJobWithAnyName) {
  FlightRecord record(0, 1, "oak", "../../x/\n");
  EXPECT_EQ(record.write("why"), (usual_ / "______x__.rank0.txt").string());
}

TEST(Connections, OfOtherHostsAreRecognized) {
  const std::string head =
      "  sl  local_address rem_address   st tx_queue rx_queue\n";
  const auto line = [](const char* local, const char* remote, const char* st) {
    return std::string("   0: ") + local + " " + remote + " " + st + " 0 0\n";
  };
  const auto lists = [&](const std::string& lines) {
    return dtensor::detail::lists_remote_connection(head + lines, 29500);
  };
  EXPECT_FALSE(lists(""));
  EXPECT_FALSE(lists(line("0100007F:733C", "00000000:0000", "0A")));
  EXPECT_FALSE(lists(line("0100007F:733C", "0100007F:8000", "01")));
  EXPECT_TRUE(lists(line("0101000A:733C", "0201000A:8000", "01")));
  EXPECT_FALSE(lists(line("0101000A:733C", "0201000A:8000", "06")));
  EXPECT_FALSE(lists(line("0101000A:733D", "0201000A:8000", "01")));
  EXPECT_FALSE(lists("garbage\n: : : 01\n\n"));
}

} // namespace TEST_SOURCE
