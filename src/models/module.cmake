# The models again without vector instructions: limits on results must hold for one lane's order of sums too.
if(SINTER_TESTS)
  add_test(NAME test_models_portable COMMAND test_models)
  set_tests_properties(test_models_portable PROPERTIES LABELS fast TIMEOUT 900 ENVIRONMENT SINTER_ISA=portable)
endif()
