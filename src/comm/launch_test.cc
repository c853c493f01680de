#include "comm/launch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/error.h"

namespace sinter::comm {
namespace {

// The environment of a launch, and nothing of the one around the test.
Launch launch_in(const std::map<std::string, std::string>& variables) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"})
    ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const Launch found = read_launch();
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  return found;
}

TEST(Launch, IsReadFromEveryLaunchersVariables) {
  EXPECT_EQ(launch_in({}).ranks, 1);
  const Launch mpi = launch_in({{"OMPI_COMM_WORLD_SIZE", "8"},
                                {"OMPI_COMM_WORLD_RANK", "5"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_EQ(mpi.launcher, "Open MPI");
  EXPECT_EQ(mpi.rank, 5);
  EXPECT_EQ(mpi.local_rank, 1);
  EXPECT_EQ(mpi.local_ranks, 4);
  const Launch slurm = launch_in({{"SLURM_STEP_NUM_TASKS", "7"},
                                  {"SLURM_PROCID", "6"},
                                  {"SLURM_LOCALID", "0"},
                                  {"SLURM_NODEID", "3"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}});
  EXPECT_EQ(slurm.launcher, "Slurm");
  EXPECT_EQ(slurm.ranks, 7);
  EXPECT_EQ(slurm.local_ranks, 1);
  const Launch torch = launch_in({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}});
  EXPECT_EQ(torch.launcher, "torchrun");
  EXPECT_EQ(torch.local_rank, 1);
}

TEST(Launch, NonsenseIsRefusedByName) {
  auto error = [](const std::map<std::string, std::string>& variables) {
    try {
      launch_in(variables);
    } catch (const base::Error& e) {
      for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error({{"PMI_SIZE", "four"}}).find("PMI_SIZE is 'four'"), std::string::npos);
  EXPECT_NE(error({{"WORLD_SIZE", "2"}, {"RANK", "2"}}).find("RANK is 2"), std::string::npos);
}

TEST(Launch, SlurmsShortFormOfTasksPerNode) {
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1", 0), 2);
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1", 2), 2);
  EXPECT_EQ(slurm_tasks_of_node("2(x3),1", 3), 1);
  EXPECT_EQ(slurm_tasks_of_node("4", 0), 4);
  EXPECT_EQ(slurm_tasks_of_node("", 0), 0);
  EXPECT_EQ(slurm_tasks_of_node("two", 0), 0);
}

}  // namespace
}  // namespace sinter::comm
